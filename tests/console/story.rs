//! The story.

use crate::chrome::{self, Chrome};
use crate::desk::Desk;

/// Where pictures go when `REDELIVER_TEST_SCREENSHOTS` names a folder.
async fn keep(chrome: &Chrome, name: &str) {
    if let Some(folder) = std::env::var_os("REDELIVER_TEST_SCREENSHOTS") {
        let path = std::path::Path::new(&folder).join(format!("{name}.png"));
        std::fs::write(path, chrome.picture(false).await).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_person_on_call_sees_what_is_wrong_and_repairs_it() {
    let Some(program) = chrome::program() else { return };
    let desk = Desk::after(240, true).await;
    let chrome = Chrome::start(&program).await;
    chrome.scheme("dark").await;
    let link = desk.server.link("oncall").await.unwrap();
    chrome.open(&link).await;
    chrome.until_says("Overview").await;
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    chrome.open(&desk.at("/")).await;
    keep(&chrome, "overview-dark").await;
    for page in [
        "dead",
        "dead?by=label.shop",
        "dead/list",
        "dead/replay?type=order.ship",
        "dead/discard?type=report.render",
        "replays",
        "tasks",
        "gates",
        "policies?type=order.ship&labels=shop_tier=vip+shop=s-17",
        "stats?by=label.shop&since=24h",
        "workers",
        "audit",
        "tasks/report-0-1",
        "nothing",
        "stats?by=type&since=48h",
    ] {
        chrome.open(&desk.at(&format!("/{page}"))).await;
        keep(&chrome, &page.replace(['/', '?', '=', '&', '+', '.'], "-")).await;
    }
    let groups = redeliver::dead_letter::groups(
        &*desk.store,
        &redeliver::store::LetterGroupBy::Fingerprint,
        &redeliver::store::Filter::default(),
        9,
    )
    .await
    .unwrap();
    chrome.open(&desk.at(&format!("/dead/group?by=fingerprint&key={}", groups[0].letters.key.as_ref().unwrap()))).await;
    keep(&chrome, "group").await;
    chrome.scheme("light").await;
    chrome.open(&desk.at("/")).await;
    keep(&chrome, "overview-light").await;
    chrome.size(390, 844, true).await;
    chrome.open(&desk.at("/")).await;
    keep(&chrome, "overview-phone").await;
    chrome.open(&desk.at("/set?lang=zh&back=/dead")).await;
    keep(&chrome, "dead-phone").await;
    chrome.open(&desk.at("/tasks/report-0-1")).await;
    keep(&chrome, "task-phone").await;
    println!("{:#?}", chrome.complaints());
    chrome.stop().await;
    desk.stop().await;
}
