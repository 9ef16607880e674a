//! Payloads, labels, messages, stacks and file names as nobody should write them: all of it is text.

use redeliver::store::access::Role;
use redeliver::task::{Attachment, AttachmentBody, DeadReason};

use crate::chrome::{self, Chrome};
use crate::desk::{Desk, token};
use crate::night::{Night, Then, Try, failure, spec};

const MARKUP: &str =
    "</pre></script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\"><b>bold</b>";
const TURNED: &str = "invoice\u{202e}gnp.exe";
const ID: &str = "a/b?c#d%2e <i>\"x\"</i> '&amp; \u{202e}";

/// A night with one letter that is all of that.
async fn desk() -> Desk {
    let folder = tempfile::tempdir().unwrap();
    let night = Night::begin(folder.path()).await;
    let mut wrong =
        failure("order.ship", MARKUP, Some(MARKUP), None, &format!("{MARKUP} nul:\u{0} bell:\u{7} {TURNED}"));
    wrong.stack = Some(format!("{MARKUP}\n{}", "s".repeat(1_000_000)));
    let attachment = |name: &str, media_type: &str, bytes: &[u8]| Attachment {
        name: name.into(),
        media_type: media_type.into(),
        body: AttachmentBody::Bytes(bytes.to_vec().into()),
    };
    let attachments = vec![
        attachment(&format!("{MARKUP}.png"), "image/png", b"<script>document.title='taken'</script>"),
        attachment("page.html", "text/html", b"<script>document.title='taken'</script>"),
        attachment(
            "drawing.svg",
            "image/svg+xml",
            b"<svg xmlns='http://www.w3.org/2000/svg' onload=\"top.document.title='taken'\"/>",
        ),
        attachment(TURNED, "application/x-msdownload", b"MZ"),
        Attachment {
            name: "elsewhere".into(),
            media_type: "text/html".into(),
            body: AttachmentBody::Link("javascript:document.title='taken'".into()),
        },
    ];
    let payload =
        serde_json::json!({ "text": MARKUP, "nul": "\u{0}", "turned": TURNED, "long": "x".repeat(1_000_000) });
    let letter = spec(
        ID,
        "order.ship",
        &[("shop", MARKUP), (TURNED, "v")],
        payload,
        redeliver::store::Clock::System.now() - 60_000,
    );
    let story = [Try::Fails { took: 100, failure: wrong, then: Then::Die(DeadReason::PermanentError), attachments }];
    night.live(redeliver::store::Clock::System.now() - 60_000, MARKUP, None, vec![letter], &story).await;
    night.close().await;
    Desk::on(folder, false).await
}

#[tokio::test(flavor = "multi_thread")]
async fn markup_scripts_nulls_turned_lines_and_megabytes_are_text() {
    let Some(program) = chrome::program() else { return };
    let desk = desk().await;
    let chrome = Chrome::start(&program).await;
    chrome.open(&desk.server.link("ming").await.unwrap()).await;
    for page in [
        "/",
        "/dead",
        "/dead?by=label.shop",
        "/dead?by=class",
        "/dead/list",
        "/tasks",
        "/stats?by=label.shop",
        "/dead/replay",
    ] {
        chrome.open(&desk.at(page)).await;
        let title = chrome.eval("document.title").await;
        assert!(title.as_str().unwrap().ends_with("· redeliver"), "{page}: {title}");
        let ours = "[...document.querySelectorAll('main b, main i, main iframe, main script, img[src=x]')].map((e) => e.outerHTML)";
        assert_eq!(chrome.eval(ours).await, serde_json::json!([]), "{page}");
    }
    chrome.open(&desk.at("/dead/list")).await;
    chrome.follow("td.id a").await;
    assert_eq!(chrome.eval("document.title").await.as_str().map(|title| title.contains("taken")), Some(false));
    let text = chrome.text().await;
    assert!(text.contains("<script>document.title='taken'</script>"), "markup is shown as it was written: {text}");
    assert!(text.contains("nul:\u{fffd} bell:␇") && text.contains("invoice⟨U+202E⟩gnp.exe"), "{text}");
    assert!(text.contains(r#""a/b?c#d%2e"#) || text.contains("a/b?c#d%2e"), "{text}");
    assert!(text.len() < 60_000, "a megabyte is a download: {} bytes", text.len());
    assert!(text.contains("Show all (1.0 MB)"), "{text}");
    assert_eq!(
        chrome.eval("document.querySelectorAll('a[href^=\"javascript:\"], main svg[onload], main b').length").await,
        0
    );
    let widths = chrome.eval("[document.documentElement.scrollWidth, innerWidth]").await;
    assert!(widths[0].as_u64() <= widths[1].as_u64(), "{widths}");
    // What says it is a picture and is none is not run either. The browser logs nothing but that it cannot show it.
    assert_eq!(chrome.eval("document.querySelectorAll('.picture img').length").await, 1);
    assert_eq!(chrome.complaints(), [] as [String; 0]);
    chrome.stop().await;
    desk.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn downloads_are_whole_and_nothing_of_them_runs() {
    let desk = desk().await;
    let client = reqwest::Client::new();
    let get = async |path: &str| {
        let id = percent(ID);
        let response =
            client.get(desk.at(&format!("/tasks/{id}/{path}"))).bearer_auth(token(Role::Viewer)).send().await.unwrap();
        assert!(response.status().is_success(), "{path}: {}", response.status());
        let header = |name: &str| {
            response.headers().get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default()
        };
        assert_eq!(header("x-content-type-options"), "nosniff", "{path}");
        assert!(header("content-security-policy").contains("sandbox"), "{path}: {}", header("content-security-policy"));
        let (media_type, disposition) = (header("content-type"), header("content-disposition"));
        (media_type, disposition, response.bytes().await.unwrap())
    };
    let (media_type, disposition, bytes) = get("payload").await;
    assert!(
        media_type == "application/octet-stream" && disposition.starts_with("attachment"),
        "{media_type} {disposition}"
    );
    let payload: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!((payload["text"].as_str(), payload["long"].as_str().map(str::len)), (Some(MARKUP), Some(1_000_000)));
    assert!(get("attempts/1/stack").await.2.len() > 1_000_000);
    for (position, shown) in [(0, true), (1, false), (2, false), (3, false)] {
        let (media_type, disposition, _) = get(&format!("attempts/1/attachments/{position}")).await;
        assert_eq!(media_type == "image/png", shown, "{position}: {media_type}");
        assert_eq!(disposition.starts_with("inline"), shown, "{position}: {disposition}");
        assert!(shown || media_type == "application/octet-stream", "{media_type}");
        assert!(!disposition.contains(['<', '\u{202e}', '\r', '\n']), "{disposition}");
    }
    desk.stop().await;
}

/// Percent-encodes everything but letters and digits.
fn percent(text: &str) -> String {
    text.bytes()
        .map(|byte| if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
