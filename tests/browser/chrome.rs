//! A real Chromium, driven over its own debugging pipe: no driver program, no port, no other crate.
//!
//! Every request that leaves it, every error it logs and every exception of a page is kept, so that a test can say there was none.

use std::collections::VecDeque;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine as _;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{mpsc, oneshot};

/// How long anything in a page may take. Generous: the machine is shared.
const PATIENCE: Duration = Duration::from_secs(30);

/// The program; `None`: there is none, and tests that need it are skipped unless `REDELIVER_TEST_REQUIRE_CHROMIUM` is 1.
pub fn program() -> Option<String> {
    let named = std::env::var("REDELIVER_TEST_CHROMIUM").ok();
    let known = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];
    let found =
        named.or_else(|| known.iter().find(|path| std::path::Path::new(path).exists()).map(ToString::to_string));
    if found.is_none() {
        let required = std::env::var("REDELIVER_TEST_REQUIRE_CHROMIUM").as_deref() == Ok("1");
        assert!(!required, "Chromium is not installed, and REDELIVER_TEST_REQUIRE_CHROMIUM is set");
        eprintln!("SKIPPED: Chromium is not installed");
    }
    found
}

type Answers = Arc<Mutex<Vec<(u64, oneshot::Sender<Value>)>>>;

/// One browser with one page.
pub struct Chrome {
    child: Child,
    commands: mpsc::UnboundedSender<String>,
    answers: Answers,
    seen: Arc<Mutex<VecDeque<Value>>>,
    session: String,
    next: AtomicU64,
    _profile: tempfile::TempDir,
}

impl Chrome {
    pub async fn start(program: &str) -> Chrome {
        let profile = tempfile::tempdir().unwrap();
        // The pipe is on descriptors 3 and 4; a shell moves its own input and output there.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>/dev/null", "sh", program])
            .args([
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--remote-debugging-pipe",
            ])
            .args(["--no-first-run", "--disable-background-networking", "--disable-component-update", "--lang=en-US"])
            .args(["--hide-scrollbars", "--force-color-profile=srgb", "--font-render-hinting=none"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("Chromium starts");
        let stdin = child.stdin.take().unwrap();
        let stdout = child.stdout.take().unwrap();
        let (commands, queue) = mpsc::unbounded_channel();
        tokio::spawn(write(stdin, queue));
        let answers = Answers::default();
        let seen = Arc::new(Mutex::new(VecDeque::new()));
        tokio::spawn(read(BufReader::new(stdout), Arc::clone(&answers), Arc::clone(&seen)));
        let mut chrome = Chrome {
            child,
            commands,
            answers,
            seen,
            session: String::new(),
            next: AtomicU64::new(1),
            _profile: profile,
        };
        let target = chrome.call("Target.createTarget", json!({"url": "about:blank"})).await;
        let attached =
            chrome.call("Target.attachToTarget", json!({"targetId": target["targetId"], "flatten": true})).await;
        chrome.session = attached["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Page", "Runtime", "Network", "Log", "DOM"] {
            chrome.call(&format!("{domain}.enable"), json!({})).await;
        }
        chrome.call("Page.setLifecycleEventsEnabled", json!({"enabled": true})).await;
        chrome.size(1360, 900, false).await;
        chrome
    }

    /// One command of the protocol, and what it answers.
    pub async fn call(&self, method: &str, params: Value) -> Value {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let mut message = json!({"id": id, "method": method, "params": params});
        if !self.session.is_empty() {
            message["sessionId"] = self.session.as_str().into();
        }
        let (reply, answer) = oneshot::channel();
        self.answers.lock().unwrap().push((id, reply));
        self.commands.send(message.to_string()).expect("Chromium listens");
        let answer = tokio::time::timeout(PATIENCE, answer).await;
        let answer = answer.unwrap_or_else(|_| panic!("{method} does not answer")).expect("Chromium runs");
        assert!(answer.get("error").is_none(), "{method}: {}", answer["error"]);
        answer["result"].clone()
    }

    /// The size of the window; a phone also has touch and a narrow viewport of its own.
    pub async fn size(&self, width: u32, height: u32, phone: bool) {
        let factor = if phone { 2 } else { 1 };
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": factor, "mobile": phone});
        self.call("Emulation.setDeviceMetricsOverride", metrics).await;
    }

    /// `light` or `dark`.
    pub async fn scheme(&self, scheme: &str) {
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", features).await;
    }

    pub async fn scripts(&self, run: bool) {
        self.call("Emulation.setScriptExecutionDisabled", json!({"value": !run})).await;
    }

    /// Opens an address and waits until it is loaded.
    pub async fn open(&self, address: &str) {
        let answer = self.call("Page.navigate", json!({"url": address})).await;
        assert!(answer.get("errorText").is_none(), "{address}: {answer}");
        let is_it = |event: &Value| event["params"]["loaderId"] == answer["loaderId"];
        self.loaded(is_it, address).await;
    }

    /// Waits until a page is loaded: the last event that `is_it` says is of the right one.
    async fn loaded(&self, is_it: impl Fn(&Value) -> bool, what: &str) {
        let end = Instant::now() + PATIENCE;
        let is_load = |event: &Value| {
            event["method"] == "Page.lifecycleEvent" && event["params"]["name"] == "load" && is_it(event)
        };
        while !self.seen.lock().unwrap().iter().any(is_load) {
            assert!(Instant::now() < end, "{what} does not load");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// What an expression comes to in the page.
    pub async fn eval(&self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.call("Runtime.evaluate", params).await;
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {}", answer["exceptionDetails"]);
        answer["result"]["value"].clone()
    }

    /// All text that a person sees.
    pub async fn text(&self) -> String {
        self.eval("document.body.innerText").await.as_str().unwrap_or_default().to_owned()
    }

    /// Waits until the page says `text`.
    pub async fn until_says(&self, text: &str) {
        self.until(&format!("document.body.innerText.includes({})", json!(text)), text).await;
    }

    /// Waits until an expression is true in the page.
    pub async fn until(&self, expression: &str, what: &str) {
        let end = Instant::now() + PATIENCE;
        loop {
            let params = json!({"expression": expression, "returnByValue": true});
            // While a page gives way to the next there is nothing to ask.
            if self.call("Runtime.evaluate", params).await["result"]["value"] == true {
                return;
            }
            assert!(Instant::now() < end, "waited for {what:?}; the page says: {}", self.text().await);
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }

    /// Clicks the middle of the first element that `selector` finds, as a person does, and waits for the page that it leads to.
    pub async fn follow(&self, selector: &str) {
        let before: Vec<Value> = self.loaders();
        self.click(selector).await;
        self.loaded(|event| !before.contains(&event["params"]["loaderId"]), selector).await;
    }

    /// The pages that have been begun so far.
    fn loaders(&self) -> Vec<Value> {
        let seen = self.seen.lock().unwrap();
        let begun = seen.iter().filter(|event| event["method"] == "Page.lifecycleEvent");
        begun.map(|event| event["params"]["loaderId"].clone()).collect()
    }

    /// Clicks without expecting another page.
    pub async fn click(&self, selector: &str) {
        let found = self
            .eval(&format!(
                "(() => {{ const e = document.querySelector({}); if (!e) return null; e.scrollIntoView({{block: 'center'}}); \
                 const r = e.getClientRects()[0]; return r && [r.x + r.width / 2, r.y + r.height / 2]; }})()",
                json!(selector)
            ))
            .await;
        let (Some(x), Some(y)) = (found[0].as_f64(), found[1].as_f64()) else {
            panic!("there is no {selector} to click; the page says: {}", self.text().await)
        };
        for kind in ["mousePressed", "mouseReleased"] {
            let params = json!({"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1});
            self.call("Input.dispatchMouseEvent", params).await;
        }
    }

    /// Fills a field as a person does: its old text marked, the new one typed.
    pub async fn fill(&self, selector: &str, text: &str) {
        let focus = format!(
            "(() => {{ const e = document.querySelector({}); e.focus(); e.select(); return true; }})()",
            json!(selector)
        );
        self.eval(&focus).await;
        self.call("Input.insertText", json!({"text": text})).await;
    }

    /// Presses one key.
    pub async fn press(&self, key: &str) {
        let mut params = json!({"type": "keyDown", "key": key});
        params["text"] = if key == "Enter" { "\r".into() } else { key.into() };
        if key == "Enter" {
            params["windowsVirtualKeyCode"] = 13.into();
        }
        self.call("Input.dispatchKeyEvent", params).await;
        self.call("Input.dispatchKeyEvent", json!({"type": "keyUp", "key": key})).await;
    }

    /// The page as a picture, all of it or what the window shows.
    pub async fn picture(&self, whole: bool) -> Vec<u8> {
        let params = json!({"format": "png", "captureBeyondViewport": whole});
        let answer = self.call("Page.captureScreenshot", params).await;
        base64::engine::general_purpose::STANDARD.decode(answer["data"].as_str().unwrap()).unwrap()
    }

    /// Everything it has complained of: errors and warnings of the console, exceptions, blocked content.
    pub fn complaints(&self) -> Vec<String> {
        let seen = self.seen.lock().unwrap();
        let complaint = |event: &Value| match event["method"].as_str()? {
            "Runtime.exceptionThrown" => Some(event["params"]["exceptionDetails"].to_string()),
            "Runtime.consoleAPICalled" if event["params"]["type"] == "error" => {
                Some(event["params"]["args"].to_string())
            }
            "Log.entryAdded" if event["params"]["entry"]["level"] == "error" => {
                Some(event["params"]["entry"].to_string())
            }
            _ => None,
        };
        seen.iter().filter_map(complaint).collect()
    }

    /// The addresses of all requests that it has made.
    pub fn requests(&self) -> Vec<String> {
        let seen = self.seen.lock().unwrap();
        let sent = seen.iter().filter(|event| event["method"] == "Network.requestWillBeSent");
        sent.filter_map(|event| event["params"]["request"]["url"].as_str().map(str::to_owned)).collect()
    }

    pub async fn stop(mut self) {
        self.child.kill().await.expect("Chromium ends");
    }
}

async fn write(mut stdin: ChildStdin, mut queue: mpsc::UnboundedReceiver<String>) {
    while let Some(message) = queue.recv().await {
        let mut bytes = message.into_bytes();
        bytes.push(0);
        if stdin.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

async fn read(mut stdout: BufReader<tokio::process::ChildStdout>, answers: Answers, seen: Arc<Mutex<VecDeque<Value>>>) {
    let mut bytes = Vec::new();
    while stdout.read_until(0, &mut bytes).await.is_ok_and(|n| n > 0) {
        bytes.pop();
        let message: Value = serde_json::from_slice(&bytes).expect("Chromium speaks JSON");
        bytes.clear();
        match message["id"].as_u64() {
            Some(id) => {
                let mut waiting = answers.lock().unwrap();
                if let Some(at) = waiting.iter().position(|(waiting, _)| *waiting == id) {
                    drop(waiting.swap_remove(at).1.send(message));
                }
            }
            None => seen.lock().unwrap().push_back(message),
        }
    }
}
