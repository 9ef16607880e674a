//! A TCP proxy in front of a broker that can cut, freeze, slow down and forge; or in front of another server, without forging.
//!
//! Forwards whole AMQP frames from the client, so that between two writes it is always at a frame boundary and can put in
//! a frame of its own. What is no AMQP it forwards as it comes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{broadcast, watch};
use tokio::task::JoinHandle;

/// Ends with all its connections when dropped.
#[derive(Debug)]
pub struct Proxy {
    pub address: String,
    flow: watch::Sender<Flow>,
    orders: broadcast::Sender<Order>,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Shared {
    framed: bool,
    open: Mutex<usize>,
    delay: Mutex<Duration>,
    tampering: Mutex<Option<Tampering>>,
}

impl Shared {
    async fn hold_up(&self) {
        let delay = *self.delay.lock().unwrap_or_else(PoisonError::into_inner);
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
    }
}

/// Bytes from the client and what the broker gets instead; of one length, so that frames stay whole.
#[derive(Debug, Clone, Copy)]
struct Tampering {
    from: &'static [u8],
    to: &'static [u8],
}

/// What passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    Both,
    /// What the client says, and no answer.
    Questions,
    Nothing,
}

#[derive(Debug, Clone, Copy)]
enum Order {
    /// Closes every connection.
    Cut,
    /// Lets nothing pass over any connection that there is, for ever, and closes none.
    Forget,
    /// Acks, on every channel that consumes, a delivery that never was.
    AckTheUnknown,
}

/// `basic.consume` as class and method.
const BASIC_CONSUME: [u8; 4] = [0, 60, 0, 20];
const PROTOCOL_HEADER_LENGTH: usize = 8;

impl Proxy {
    /// A proxy in front of `target`.
    pub async fn start(target: String) -> Proxy {
        Proxy::start_at("127.0.0.1:0", target).await
    }

    /// A proxy in front of what speaks another protocol than AMQP.
    pub async fn raw(target: String) -> Proxy {
        Proxy::listen("127.0.0.1:0", target, false).await
    }

    /// The same, listening at `address`.
    pub async fn start_at(address: &str, target: String) -> Proxy {
        Proxy::listen(address, target, true).await
    }

    async fn listen(address: &str, target: String, framed: bool) -> Proxy {
        let listener = TcpListener::bind(address).await.expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        let flow = watch::Sender::new(Flow::Both);
        let orders = broadcast::Sender::new(16);
        let shared = Arc::new(Shared { framed, ..Shared::default() });
        let accepting = tokio::spawn(accept(listener, target, flow.clone(), orders.clone(), shared.clone()));
        Proxy { address, flow, orders, shared, accepting }
    }

    /// Closes every connection.
    pub fn cut(&self) {
        self.order(Order::Cut);
    }

    /// From now on nothing passes in either direction, on old and new connections, and no connection is closed.
    pub fn freeze(&self) {
        self.flow.send_replace(Flow::Nothing);
    }

    /// From now on the server hears everything, and nobody hears its answers.
    pub fn mute(&self) {
        self.flow.send_replace(Flow::Questions);
    }

    /// Everything passes again.
    pub fn thaw(&self) {
        self.flow.send_replace(Flow::Both);
    }

    /// The connections that there are die without a word, as those do that a firewall has forgotten; new ones are as good as ever.
    pub fn forget(&self) {
        self.order(Order::Forget);
    }

    /// From now on each piece that arrives here, of either side, stops everything on its connection for so long.
    pub fn slow(&self, delay: Duration) {
        *self.shared.delay.lock().unwrap_or_else(PoisonError::into_inner) = delay;
    }

    /// Makes the broker close every consuming channel, as an ack for an unknown delivery does.
    pub fn ack_the_unknown(&self) {
        self.order(Order::AckTheUnknown);
    }

    /// Connections that pass through.
    pub fn open(&self) -> usize {
        *self.shared.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on the broker gets `to` wherever the client sends `from`.
    pub fn tamper(&self, from: &'static [u8], to: &'static [u8]) {
        assert_eq!(from.len(), to.len());
        *self.shared.tampering.lock().unwrap_or_else(PoisonError::into_inner) = Some(Tampering { from, to });
    }

    fn order(&self, order: Order) {
        // An error only means that there is no connection to order anything of.
        drop(self.orders.send(order));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

async fn accept(
    listener: TcpListener,
    target: String,
    flow: watch::Sender<Flow>,
    orders: broadcast::Sender<Order>,
    shared: Arc<Shared>,
) {
    while let Ok((client, _)) = listener.accept().await {
        let (target, flow, orders) = (target.clone(), flow.subscribe(), orders.subscribe());
        let shared = shared.clone();
        tokio::spawn(async move {
            // A target that is down closes the client's connection, as it would without us.
            if let Ok(server) = TcpStream::connect(&target).await {
                *shared.open.lock().unwrap_or_else(PoisonError::into_inner) += 1;
                forward(client, server, flow, orders, &shared).await;
                *shared.open.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
            }
        });
    }
}

async fn forward(
    mut client: TcpStream,
    mut server: TcpStream,
    mut flow: watch::Receiver<Flow>,
    mut orders: broadcast::Receiver<Order>,
    shared: &Shared,
) {
    let mut from_client = vec![0; 64 * 1024];
    let mut from_server = vec![0; 64 * 1024];
    let mut partial = Vec::new();
    let mut header_passed = false;
    let mut consuming: Vec<[u8; 2]> = Vec::new();
    let mut forgotten = false;
    loop {
        let flows = if forgotten { Flow::Nothing } else { *flow.borrow_and_update() };
        tokio::select! {
            order = orders.recv() => match order {
                Ok(Order::AckTheUnknown) => {
                    for channel in &consuming {
                        if server.write_all(&ack_of_unknown(*channel)).await.is_err() {
                            return;
                        }
                    }
                }
                Ok(Order::Forget) => forgotten = true,
                Ok(Order::Cut) | Err(_) => return,
            },
            changed = flow.changed() => if changed.is_err() { return },
            read = client.read(&mut from_client), if flows != Flow::Nothing => {
                let Ok(length @ 1..) = read else { return };
                shared.hold_up().await;
                partial.extend_from_slice(&from_client[..length]);
                let whole = match shared.framed {
                    true => whole_frames(&partial, &mut header_passed, &mut consuming),
                    false => length,
                };
                let tampering = *shared.tampering.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(Tampering { from, to }) = tampering {
                    replace(&mut partial[..whole], from, to);
                }
                if server.write_all(&partial[..whole]).await.is_err() {
                    return;
                }
                partial.drain(..whole);
            }
            read = server.read(&mut from_server), if flows == Flow::Both => {
                let Ok(length @ 1..) = read else { return };
                shared.hold_up().await;
                if client.write_all(&from_server[..length]).await.is_err() {
                    return;
                }
            }
        }
    }
}

fn replace(bytes: &mut [u8], from: &[u8], to: &[u8]) {
    let mut at = 0;
    while at + from.len() <= bytes.len() {
        if bytes[at..].starts_with(from) {
            bytes[at..at + to.len()].copy_from_slice(to);
        }
        at += 1;
    }
}

/// How many bytes of `bytes` are whole frames; notes the channels that start to consume.
fn whole_frames(bytes: &[u8], header_passed: &mut bool, consuming: &mut Vec<[u8; 2]>) -> usize {
    let mut at = 0;
    if !*header_passed {
        if bytes.len() < PROTOCOL_HEADER_LENGTH {
            return 0;
        }
        *header_passed = true;
        at = PROTOCOL_HEADER_LENGTH;
    }
    // Type, channel (2), size (4), payload, end.
    while let Some(head) = bytes.get(at..at + 7) {
        let size = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
        let Some(payload) = bytes.get(at + 7..at + 7 + size) else { break };
        if bytes.len() < at + 8 + size {
            break;
        }
        if head[0] == 1 && payload.starts_with(&BASIC_CONSUME) {
            consuming.push([head[1], head[2]]);
        }
        at += 8 + size;
    }
    at
}

/// `basic.ack` of delivery 999,999,999.
fn ack_of_unknown(channel: [u8; 2]) -> Vec<u8> {
    let mut frame = vec![1, channel[0], channel[1], 0, 0, 0, 13, 0, 60, 0, 80];
    frame.extend_from_slice(&999_999_999_u64.to_be_bytes());
    frame.extend_from_slice(&[0, 0xCE]);
    frame
}
