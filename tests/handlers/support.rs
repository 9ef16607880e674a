//! A third party for tests: a TCP server that answers what it is told, byte by byte, and remembers what it was asked.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use redeliver::handler::AttemptContext;
use redeliver::task::{Failure, Outcome, RetryAfter, Spec, TaskResult, TraceContext, Verdict};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// One thing a server does with a connection after it has read a request.
#[derive(Debug, Clone)]
pub enum Step {
    /// Sends these bytes.
    Send(Vec<u8>),
    /// Sends these bytes again and again until the other side goes away.
    Flood(Vec<u8>),
    /// Does nothing until the other side goes away.
    Hang,
    /// Resets the connection.
    Reset,
}

/// A request as it came in.
#[derive(Debug, Clone)]
pub struct Request {
    pub head: String,
    pub body: Vec<u8>,
}

impl Request {
    /// The value of a header, whatever the case of its name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

/// The server.
pub struct Server {
    pub address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
    /// Notified whenever a request has been read.
    pub asked: Arc<Notify>,
    /// Notified whenever the other side has gone away from a `Hang` or `Flood`.
    pub left: Arc<Notify>,
}

impl Server {
    /// Serves every request with `steps`, then closes the connection.
    pub async fn doing(steps: Vec<Step>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Server {
            address: listener.local_addr().unwrap(),
            requests: Arc::default(),
            asked: Arc::default(),
            left: Arc::default(),
        };
        let (requests, asked, left) = (server.requests.clone(), server.asked.clone(), server.left.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (requests, asked, left) = (requests.clone(), asked.clone(), left.clone());
                let steps = steps.clone();
                tokio::spawn(async move {
                    if serve(stream, &steps, &requests, &asked).await {
                        left.notify_one();
                    }
                });
            }
        });
        server
    }

    /// Serves every request with these bytes.
    pub async fn saying(bytes: impl Into<Vec<u8>>) -> Server {
        Server::doing(vec![Step::Send(bytes.into())]).await
    }

    pub fn url(&self) -> String {
        format!("http://{}/call", self.address)
    }

    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

/// Whether the other side left while it was being kept.
async fn serve(mut stream: TcpStream, steps: &[Step], requests: &Mutex<Vec<Request>>, asked: &Notify) -> bool {
    let Some(request) = read_request(&mut stream).await else { return false };
    requests.lock().unwrap().push(request);
    asked.notify_one();
    for step in steps {
        match step {
            Step::Send(bytes) => {
                if stream.write_all(bytes).await.is_err() {
                    return true;
                }
            }
            Step::Flood(bytes) => {
                while stream.write_all(bytes).await.is_ok() {}
                return true;
            }
            Step::Hang => {
                let mut rest = [0; 1];
                while matches!(stream.read(&mut rest).await, Ok(1)) {}
                return true;
            }
            Step::Reset => {
                stream.set_zero_linger().unwrap();
                return false;
            }
        }
    }
    false
}

async fn read_request(stream: &mut TcpStream) -> Option<Request> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 8192];
    let end_of_head = |bytes: &[u8]| bytes.windows(4).position(|w| w == b"\r\n\r\n");
    let head_length = loop {
        if let Some(at) = end_of_head(&bytes) {
            break at + 4;
        }
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return None,
            Ok(length) => bytes.extend_from_slice(&buffer[..length]),
        }
    };
    let head = String::from_utf8_lossy(&bytes[..head_length]).into_owned();
    let mut request = Request { head, body: bytes[head_length..].to_vec() };
    let length: usize = request.header("content-length").map_or(0, |text| text.parse().unwrap());
    while request.body.len() < length {
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return None,
            Ok(length) => request.body.extend_from_slice(&buffer[..length]),
        }
    }
    Some(request)
}

/// A whole response.
pub fn response(status: &str, headers: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let mut bytes =
        format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n", body.len())
            .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// An attempt at a task with this payload.
pub fn attempt(payload: &str) -> AttemptContext {
    AttemptContext {
        task: Arc::new(Spec {
            id: "task-1".into(),
            task_type: "order.ship".into(),
            payload: payload.into(),
            labels: BTreeMap::new(),
            idempotency_key: Some("key-1".into()),
            priority: 0,
            cache_key: None,
            reply_to: None,
            trace: None,
            payload_hash: String::new(),
            submission_hash: None,
            created_at: 0,
            raw: None,
            conflicts_with: None,
        }),
        retry_count: 2,
        generation: 1,
        fence: 7,
        trace: None,
        cancel: CancellationToken::new(),
    }
}

/// The same as part of somebody's trace.
pub fn traced_attempt(payload: &str) -> AttemptContext {
    AttemptContext { trace: TraceContext::read(TRACEPARENT, Some(TRACESTATE)), ..attempt(payload) }
}

pub const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
pub const TRACESTATE: &str = "congo=t61rcWkgMzE";

/// The result of a success.
#[track_caller]
pub fn succeeded(outcome: &Outcome) -> Option<TaskResult> {
    match outcome {
        Outcome::Success { result, .. } => result.clone(),
        Outcome::Failure { failure, .. } => panic!("failed: {failure:?}"),
    }
}

/// What a failure says.
#[track_caller]
pub fn failed(outcome: &Outcome) -> (Failure, Verdict, Option<RetryAfter>) {
    match outcome {
        Outcome::Failure { failure, verdict, retry_after, .. } => (failure.clone(), *verdict, *retry_after),
        Outcome::Success { result, .. } => panic!("succeeded: {result:?}"),
    }
}
