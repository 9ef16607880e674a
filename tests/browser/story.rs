//! The story: sign in, see the kinds, look at a screenshot, prove the repair on one, replay the rest, say what became of it.

use std::path::PathBuf;

use redeliver::store::{Filter, LetterGroupBy};

use crate::chrome::{self, Chrome};
use crate::contrast::TOO_FAINT;
use crate::desk::{Desk, token};
use redeliver::store::access::Role;

/// Letters of the largest kind; the pictures for the README ask for more.
fn letters() -> usize {
    if pictures().is_some() { 240 } else { 96 }
}

/// Where pictures go: only where `REDELIVER_TEST_SCREENSHOTS` names a folder, so that a test run leaves the tree as it was.
fn pictures() -> Option<PathBuf> {
    std::env::var_os("REDELIVER_TEST_SCREENSHOTS").map(PathBuf::from)
}

/// Keeps a picture of what the window shows.
async fn keep(chrome: &Chrome, name: &str) {
    if let Some(folder) = pictures() {
        std::fs::write(folder.join(format!("{name}.png")), chrome.picture(false).await).unwrap();
    }
}

/// The key of the group whose letters failed with `class`.
async fn group_of(desk: &Desk, class: &str) -> String {
    let groups =
        redeliver::dead_letter::groups(&*desk.store, &LetterGroupBy::Fingerprint, &Filter::default(), 50).await;
    let found = groups.unwrap().into_iter().find(|group| group.letters.classes.contains_key(class));
    found.and_then(|group| group.letters.key).unwrap_or_else(|| panic!("no group of {class}"))
}

/// Nothing is wider than the window.
async fn fits(chrome: &Chrome, what: &str) {
    let widths = chrome.eval("[document.documentElement.scrollWidth, innerWidth]").await;
    assert!(widths[0].as_u64() <= widths[1].as_u64(), "{what} is wider than the window: {widths}");
}

/// Every text of the page can be read.
async fn is_readable(chrome: &Chrome, what: &str) {
    let faint = chrome.eval(TOO_FAINT).await;
    assert_eq!(faint, serde_json::json!([]), "{what}: too faint");
}

/// Nothing was logged, nothing left this machine.
fn is_quiet(chrome: &Chrome, desk: &Desk) {
    assert_eq!(chrome.complaints(), [] as [String; 0]);
    let own = desk.at("/");
    for address in chrome.requests() {
        assert!(
            address.starts_with(&own) || address.starts_with("about:") || address.starts_with("data:"),
            "{address}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_person_on_call_sees_what_is_wrong_proves_the_repair_on_one_and_replays_the_rest() {
    let Some(program) = chrome::program() else { return };
    let desk = Desk::after(letters(), true).await;
    let chrome = Chrome::start(&program).await;
    chrome.scheme("dark").await;

    // A link that works once.
    let link = desk.server.link("ming").await.unwrap();
    chrome.open(&link).await;
    chrome.until_says("Overview").await;
    chrome.until("document.querySelectorAll('svg.rung').length >= 3", "the ladder").await;
    chrome.until("document.querySelector('svg.columns rect.ok') !== null", "the last minutes").await;
    keep(&chrome, "overview").await;

    // Three kinds, the largest first.
    chrome.follow("nav a[href='/dead']").await;
    let kinds = chrome.eval("document.querySelectorAll('table.groups tbody tr').length").await;
    assert_eq!(kinds, 3, "{}", chrome.text().await);
    keep(&chrome, "dead-letters").await;

    // The robot's letters: one of them, with what the robot saw.
    let robot = group_of(&desk, "transient").await;
    chrome.follow(&format!("a[href*='{robot}']")).await;
    chrome.until_says("element_not_interactable").await;
    chrome.follow("#samples td.id a").await;
    chrome.until_says("retries exhausted").await;
    chrome.until("document.querySelector('.picture img').naturalWidth === 640", "the screenshot").await;
    let text = chrome.text().await;
    assert!(text.contains("waited 45m") && text.contains("policy \"default\""), "why that delay: {text}");
    assert!(text.contains("page.html"), "what is no picture is a download: {text}");
    assert_eq!(chrome.eval("document.querySelectorAll('iframe, object, embed').length").await, 0);
    keep(&chrome, "dead-letter").await;

    // The carrier's letters: one first.
    chrome.open(&desk.at("/dead")).await;
    let carrier = group_of(&desk, "timeout").await;
    chrome.follow(&format!("a[href*='{carrier}']")).await;
    chrome.follow("#samples td.id a").await;
    chrome.follow("[data-actions] a.primary").await;
    chrome.until_says("Will run again").await;
    chrome.fill("input[name=reason]", "does it work again?").await;
    chrome.until_says("--reason 'does it work again?'").await;
    chrome.follow(".ask-form button.primary").await;
    chrome.until_says("done").await;

    // Then the rest, a few at first. The page is left alone: it shows the end by itself.
    chrome.open(&desk.at(&format!("/dead/replay?fingerprint={carrier}"))).await;
    let rest = letters() - 1;
    chrome.until_says(&format!("Replay {rest}")).await;
    chrome.fill("input[name=rate]", "60/s").await;
    chrome.fill("input[name=reason]", "carrier is back, ticket 4711").await;
    chrome.until_says("--rate 60/s").await;
    keep(&chrome, "replay-ask").await;
    chrome.follow(".ask-form button.primary").await;
    chrome.until("location.pathname.startsWith('/replays/')", "the job").await;
    chrome
        .until("Number(document.querySelectorAll('#job-figures .number')[1].textContent) >= 4", "a few succeed")
        .await;
    keep(&chrome, "replay-job").await;
    chrome.until("document.querySelector('#job-state').textContent.includes('done')", "the end of the job").await;
    let figures = chrome.eval("[...document.querySelectorAll('#job-figures .number')].map((e) => e.textContent)").await;
    let (succeeded, failed) = (figures[1].as_str().unwrap(), figures[2].as_str().unwrap());
    let ended = succeeded.parse::<usize>().unwrap() + failed.parse::<usize>().unwrap();
    assert_eq!(ended, rest, "every letter has an end: {figures}");
    chrome.follow("#items .tabs a[href*='failed_again']").await;
    if failed != "0" {
        chrome.until_says("ship-").await;
    }

    // In Chinese.
    chrome.follow("footer a[lang='zh-Hans']").await;
    chrome.until_says("重放作业").await;
    chrome.open(&desk.at("/")).await;
    chrome.until_says("重试阶梯").await;
    keep(&chrome, "overview-zh").await;
    chrome.open(&desk.at("/policies?type=order.ship&labels=shop_tier=vip+shop=s-17")).await;
    chrome.until_says("适用策略").await;
    chrome.follow("footer a[lang='en']").await;

    is_quiet(&chrome, &desk);
    chrome.stop().await;
    desk.stop().await;
}

/// Pages to look at, beside those of the story.
const PAGES: [&str; 16] = [
    "/",
    "/dead",
    "/dead?by=label.shop",
    "/dead/list",
    "/dead/list?text=carrier",
    "/dead/replay?type=order.ship",
    "/dead/discard?type=report.render",
    "/replays",
    "/tasks",
    "/tasks?status=retry_waiting",
    "/tasks/report-0-1",
    "/tasks/report-0-1/edit",
    "/gates",
    "/policies?type=listing.update",
    "/stats?by=label.shop&since=48h",
    "/workers",
];

#[tokio::test(flavor = "multi_thread")]
async fn every_page_fits_a_phone_and_can_be_read_by_day_and_by_night() {
    let Some(program) = chrome::program() else { return };
    let desk = Desk::after(48, false).await;
    let chrome = Chrome::start(&program).await;
    chrome.open(&desk.server.link("ming").await.unwrap()).await;
    for page in PAGES.into_iter().chain(["/audit", "/sign-in"]) {
        for scheme in ["dark", "light"] {
            chrome.size(1360, 900, false).await;
            chrome.scheme(scheme).await;
            chrome.open(&desk.at(page)).await;
            is_readable(&chrome, &format!("{page}, {scheme}")).await;
            fits(&chrome, page).await;
            if scheme == "light" && page.starts_with("/stats") {
                keep(&chrome, "statistics").await;
            }
            if scheme == "light" && page.starts_with("/policies") {
                keep(&chrome, "policies").await;
            }
            chrome.size(390, 844, true).await;
            fits(&chrome, &format!("{page} on a phone")).await;
            if scheme == "dark" && page == "/dead" {
                keep(&chrome, "phone").await;
            }
        }
    }
    // A choice of one's own goes before the system's.
    chrome.scheme("light").await;
    chrome.size(1360, 900, false).await;
    chrome.open(&desk.at("/gates")).await;
    chrome.follow("footer a[href*='theme=dark']").await;
    assert_eq!(chrome.eval("getComputedStyle(document.body).backgroundColor").await, "rgb(15, 19, 23)");
    assert_eq!(chrome.eval("location.pathname").await, "/gates");
    is_quiet(&chrome, &desk);
    chrome.stop().await;
    desk.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_day_on_call_goes_by_the_keyboard() {
    let Some(program) = chrome::program() else { return };
    let desk = Desk::after(48, false).await;
    let chrome = Chrome::start(&program).await;
    chrome.open(&desk.server.link("ming").await.unwrap()).await;
    chrome.open(&desk.at("/dead/list")).await;
    chrome.press("?").await;
    chrome.until("document.getElementById('keys').open", "the keys").await;
    chrome.eval("document.getElementById('keys').close()").await;
    for key in ["j", "j", "j", "k"] {
        chrome.press(key).await;
    }
    let second = chrome.eval("document.querySelectorAll('tr[data-row]')[1].classList.contains('at')").await;
    assert_eq!(second, true);
    chrome.press("x").await;
    chrome.until_says("Replay selected (1)").await;
    chrome.press("j").await;
    chrome.press("x").await;
    chrome.press("r").await;
    chrome.until("location.pathname === '/dead/replay'", "the form").await;
    chrome.until_says("Replay 2").await;
    chrome.open(&desk.at("/dead/list")).await;
    chrome.press("/").await;
    chrome.until("document.activeElement.name === 'text'", "the search field").await;
    chrome.fill("input[name=text]", "item_id").await;
    chrome.press("Enter").await;
    // Complete: keys that are pressed before the page's script has begun are nobody's.
    chrome.until("location.search.includes('text=item_id') && document.readyState === 'complete'", "the search").await;
    chrome.until_says("invalid_response").await;
    chrome.press("j").await;
    chrome.press("Enter").await;
    chrome.until("location.pathname.startsWith('/tasks/listing-')", "the letter").await;
    is_quiet(&chrome, &desk);
    chrome.stop().await;
    desk.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_that_matters_works_without_scripts() {
    let Some(program) = chrome::program() else { return };
    let desk = Desk::after(48, true).await;
    let chrome = Chrome::start(&program).await;
    chrome.scripts(false).await;
    // Without scripts in the page, questions of the test are still answered.
    chrome.open(&desk.at("/dead")).await;
    chrome.until("location.pathname === '/sign-in'", "the way in").await;
    chrome.fill("input[name=token]", &token(Role::Operator)).await;
    chrome.follow(".centre button").await;
    chrome.until("location.pathname === '/dead'", "where it was asked for").await;
    let robot = group_of(&desk, "transient").await;
    chrome.follow(&format!("a[href*='{robot}']")).await;
    chrome.follow("a.primary").await;
    chrome.until_says("Will run again").await;
    chrome.fill("input[name=rate]", "").await;
    chrome.fill("input[name=reason]", "the page is as it was").await;
    chrome.eval("document.querySelector('input[name=ramp]').checked = false").await;
    chrome.follow(".ask-form button.primary").await;
    chrome.until("location.pathname.startsWith('/replays/')", "the job").await;
    let job = desk.store.replays(&[], None, 1).await.unwrap().remove(0);
    assert_eq!((job.created_by.as_deref(), job.pace.ramp, job.pace.rate_per_s), (Some("operator"), false, None));
    chrome.open(&desk.at("/gates")).await;
    chrome.click("article.gate summary").await;
    chrome.fill("article.gate input[name=reason]", "the shop is free again").await;
    chrome.follow("article.gate details[open] form > button").await;
    chrome.until_says("The breaker is closed.").await;
    is_quiet(&chrome, &desk);
    chrome.stop().await;
    desk.stop().await;
}
