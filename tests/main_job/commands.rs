//! What commands say when the broker does not: a number for scripts, in time, and no secret.

use std::time::{Duration, Instant};

use crate::rig::Rig;
use crate::support::with_vhost;
use crate::third_party::ThirdParty;

/// Each needs the broker.
const COMMANDS: [&[&str]; 5] = [
    &["publish", "test.call", "--payload", "1"],
    &["dispatch"],
    &["queue", "list"],
    &["topology", "plan"],
    &["dlq", "sync", "--yes"],
];

#[tokio::test]
async fn commands_exit_with_7_in_time_when_the_broker_is_down() {
    with_vhost(async |vhost| {
        let party = ThirdParty::healthy().await;
        let rig = Rig::new(&vhost, &party.route("10s")).await;
        // One port refuses; behind the other a listener takes the connection and never says a word.
        let mute = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let refusing = closed.local_addr().expect("an address");
        drop(closed);
        for address in [refusing, mute.local_addr().expect("an address")] {
            rig.rewrite_broker(&vhost.url_at(&address.to_string()), &party.route("10s"));
            for command in COMMANDS {
                let mut arguments = vec!["--timeout", "2s"];
                arguments.extend(command);
                let began = Instant::now();
                let said = rig.run(&arguments).await;
                assert_eq!(said.code, Some(7), "{address} {command:?}: {said:?}");
                assert!(began.elapsed() < Duration::from_secs(2 + 3), "{command:?} took {:?}", began.elapsed());
                assert!(
                    said.stderr.contains(&address.port().to_string()) || said.stderr.contains("broker"),
                    "{said:?}"
                );
            }
        }
    })
    .await;
}

#[tokio::test]
async fn commands_and_workers_exit_with_7_on_a_wrong_password_and_never_print_it() {
    with_vhost(async |vhost| {
        let party = ThirdParty::healthy().await;
        let rig = Rig::new(&vhost, &party.route("10s")).await;
        rig.rewrite_broker(&vhost.url_with_password("s3cret-pw"), &party.route("10s"));
        for command in COMMANDS.into_iter().chain([&["work"] as &[&str], &["config", "show"], &["doctor"]]) {
            for verbosity in [&[] as &[&str], &["-vv"]] {
                let mut arguments = vec!["--timeout", "15s"];
                arguments.extend(verbosity);
                arguments.extend(command);
                let said = rig.run(&arguments).await;
                assert!(
                    !said.stdout.contains("s3cret-pw") && !said.stderr.contains("s3cret-pw"),
                    "{command:?}: {said:?}"
                );
                match command[0] {
                    "config" => assert_eq!(said.code, Some(0), "{said:?}"),
                    "doctor" => assert_eq!(said.code, Some(1), "{said:?}"),
                    _ => assert_eq!(said.code, Some(7), "{command:?}: {said:?}"),
                }
            }
        }
    })
    .await;
}
