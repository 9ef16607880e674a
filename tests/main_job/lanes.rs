//! Both lanes full: retries get their share of the starts and new tasks the rest.

use std::time::Duration;

use crate::rig::{Rig, as_i64, report, sized};
use crate::support::{until_within, with_vhost};
use crate::third_party::{Arrival, ThirdParty};

const LIMIT: Duration = Duration::from_secs(120);

fn retries_in(arrivals: &[Arrival]) -> usize {
    arrivals.iter().filter(|arrival| arrival.retry_count > 0).count()
}

#[tokio::test]
async fn with_new_tasks_and_retries_ready_a_quarter_to_thirty_percent_of_the_first_hundred_starts_are_retries() {
    with_vhost(async |vhost| {
        let n = sized(1_000, 400);
        let messages = u32::try_from(n).expect("a small number");
        let party = ThirdParty::broken().await;
        let settings = |concurrency: usize| {
            format!(
                "[worker]\nconcurrency = {concurrency}\n{}[[policy]]\nname = \"p\"\nbackoff = {{ steps = [\"10s\"] }}\n",
                party.route("30s")
            )
        };
        let rig = Rig::new(&vhost, &settings(64)).await;
        let mut first = rig.worker();
        rig.publish_many("retry", n).await;
        let waiting = "SELECT count(*) FROM tasks WHERE status = 'retry_waiting'";
        rig.until_number(LIMIT, waiting, as_i64(n)).await;
        first.stop(LIMIT).await;
        rig.until_ready(LIMIT, "redeliver.default.retries", messages).await;
        rig.publish_many("new", n).await;
        rig.until_ready(LIMIT, "redeliver.default.tasks", messages).await;
        party.heal();

        let before = party.calls();
        rig.rewrite_config(&settings(1));
        let mut one_by_one = rig.worker();
        until_within(LIMIT, "a hundred starts", async || party.calls() >= before + 100).await;
        one_by_one.stop(LIMIT).await;
        let alone = retries_in(&party.arrivals()[before..before + 100]);

        let before = party.calls();
        rig.rewrite_config(&settings(64));
        let many = rig.worker();
        until_within(LIMIT, "a hundred starts", async || party.calls() >= before + 100).await;
        let together = retries_in(&party.arrivals()[before..before + 100]);
        let succeeded = "SELECT count(*) FROM tasks WHERE status = 'succeeded'";
        rig.until_number(LIMIT, succeeded, as_i64(2 * n)).await;

        report(&format!(
            "lanes: {n} new and {n} retries ready: {alone} of the first 100 starts are retries at concurrency 1, {together} at 64"
        ));
        assert!((25..=30).contains(&alone), "{alone} at concurrency 1");
        // By the calls' arrival: of 64 that start together it is chance who is there first.
        assert!((20..=35).contains(&together), "{together} at concurrency 64");
        assert_eq!(party.calls(), 3 * n, "each retry was called twice, each new task once");
        assert!(!many.log().contains("ERROR"), "{}", many.log());
    })
    .await;
}
