//! The nodes of one broker, and which of them we use.
//!
//! Several URLs, or one name with several addresses, are several ways into one cluster. Every process tries them in an order of
//! its own, so that the clients of a node that falls are spread over the others; stays with the one that worked; and comes back
//! last to those that failed it. A node that says nothing does not hold up the others: the next one is tried beside it.
//!
//! Nothing here judges a node by more than how it treated us: whether it belongs to a majority only its queues can tell.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::net::lookup_host;
use tokio::time::{sleep, timeout};
use tracing::debug;

use super::endpoint::{Endpoint, Opened};
use super::session::close;
use crate::broker::BrokerError;

/// How long a node is tried alone before the next one is tried beside it: longer than a login at a busy node usually takes, and a
/// node that hangs costs no more than this.
const HEAD_START: Duration = Duration::from_secs(2);
/// How long a name may take to resolve.
const LOOKUP_LIMIT: Duration = Duration::from_secs(3);

/// See the module.
pub(super) struct Nodes {
    endpoints: Vec<Endpoint>,
    /// Our own order of addresses.
    order: RandomState,
    past: Mutex<Past>,
    /// How many addresses they had when we last looked.
    known: AtomicUsize,
    /// Nodes that we reached and left because they were of no use, since one last was.
    left: AtomicUsize,
}

/// How the nodes have treated us.
#[derive(Default)]
struct Past {
    current: Option<SocketAddr>,
    /// When each failed last, in failures.
    failed: HashMap<SocketAddr, u64>,
    failures: u64,
}

impl Past {
    fn failed(&mut self, address: SocketAddr) {
        self.failures += 1;
        self.failed.insert(address, self.failures);
        self.current = self.current.filter(|current| *current != address);
    }

    /// Sorts: the one in use, then those that never failed, then the one whose failure is longest ago. `order` breaks ties.
    fn sort<T, K: Ord>(&self, ways: &mut [T], address: impl Fn(&T) -> SocketAddr, order: impl Fn(SocketAddr) -> K) {
        ways.sort_by_cached_key(|way| {
            let address = address(way);
            (self.current != Some(address), self.failed.get(&address).copied().unwrap_or(0), order(address))
        });
    }
}

impl std::fmt::Debug for Nodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.endpoints).finish()
    }
}

impl Nodes {
    /// There must be at least one.
    pub(super) fn new(endpoints: Vec<Endpoint>) -> Nodes {
        Nodes {
            endpoints,
            order: RandomState::new(),
            past: Mutex::new(Past::default()),
            known: AtomicUsize::new(1),
            left: AtomicUsize::new(0),
        }
    }

    /// Hosts and ports, for messages.
    pub(super) fn place(&self) -> String {
        self.endpoints.iter().map(|endpoint| endpoint.place.as_str()).collect::<Vec<_>>().join(", ")
    }

    fn past(&self) -> std::sync::MutexGuard<'_, Past> {
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects to the first node that lets us in. `limit` is for each single one.
    ///
    /// # Errors
    /// What the broker said, if any node said no; otherwise what was wrong with each.
    pub(super) async fn open(&self, name: &'static str, limit: Duration) -> Result<Opened, BrokerError> {
        let (ways, mut errors) = self.ways(limit).await;
        let head_start = HEAD_START.min(limit / u32::try_from(ways.len().max(1)).unwrap_or(u32::MAX));
        let mut ways = ways.into_iter();
        let mut trying = FuturesUnordered::new();
        loop {
            if let Some(way) = ways.next() {
                trying.push(open(Arc::new(way), name, limit));
            } else if trying.is_empty() {
                return Err(summary(errors));
            }
            let more = ways.len() > 0;
            tokio::select! {
                Some((way, tried)) = trying.next() => match tried {
                    Ok(opened) => {
                        self.past().current = way.address;
                        // Dropped in the middle of a login they might be let in after all.
                        tokio::spawn(close_all(trying));
                        return Ok(opened);
                    }
                    Err(error) => {
                        debug!(broker = way.place, "not connected: {error}");
                        if let Some(address) = way.address {
                            self.past().failed(address);
                        }
                        errors.push(error);
                    }
                },
                () = sleep(head_start), if more => {}
            }
        }
    }

    /// Every address of every node, in the order to try them, and what was wrong with the names of others.
    async fn ways(&self, limit: Duration) -> (Vec<Endpoint>, Vec<BrokerError>) {
        let limit = limit.min(LOOKUP_LIMIT);
        let mut looking: FuturesUnordered<_> =
            self.endpoints.iter().map(async |endpoint| (endpoint, addresses(endpoint, limit).await)).collect();
        let (mut ways, mut errors) = (Vec::new(), Vec::new());
        while let Some((endpoint, found)) = looking.next().await {
            match found {
                Ok(found) => {
                    let several = found.len() > 1;
                    ways.extend(found.into_iter().map(|address| (address, endpoint.at(address, several))));
                }
                Err(error) => errors.push(error),
            }
        }
        self.known.store(ways.len().max(1), Ordering::Relaxed);
        let mut past = self.past();
        past.failed.retain(|address, _| ways.iter().any(|(way, _)| way == address));
        past.sort(&mut ways, |(address, _)| *address, |address| self.order.hash_one(address));
        (ways.into_iter().map(|(_, endpoint)| endpoint).collect(), errors)
    }

    /// This node let us in and was of no use: it comes last from now on.
    pub(super) fn leave(&self, endpoint: &Endpoint) {
        if let Some(address) = endpoint.address {
            self.past().failed(address);
        }
        self.left.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether leaving the node in use may help: there are others, and they have not all been left already.
    pub(super) fn has_others(&self) -> bool {
        self.left.load(Ordering::Relaxed) + 1 < self.count()
    }

    /// The node in use is of use.
    pub(super) fn useful(&self) {
        self.left.store(0, Ordering::Relaxed);
    }

    /// How many there are, by their addresses.
    pub(super) fn count(&self) -> usize {
        self.known.load(Ordering::Relaxed)
    }
}

async fn open(way: Arc<Endpoint>, name: &'static str, limit: Duration) -> (Arc<Endpoint>, Result<Opened, BrokerError>) {
    let connected = way.connect(name, limit).await;
    let opened = connected.map(|(version, connection)| Opened { endpoint: way.clone(), version, connection });
    (way, opened)
}

async fn close_all<F: Future<Output = (Arc<Endpoint>, Result<Opened, BrokerError>)>>(mut trying: FuturesUnordered<F>) {
    while let Some((_, tried)) = trying.next().await {
        if let Ok(opened) = tried {
            close(&opened.connection).await;
        }
    }
}

/// The addresses of a node, at least one.
async fn addresses(endpoint: &Endpoint, limit: Duration) -> Result<Vec<SocketAddr>, BrokerError> {
    let (host, port) = endpoint.host();
    let unknown = |reason: String| BrokerError::Unreachable { place: endpoint.place.clone(), reason };
    let found = match timeout(limit, lookup_host((host, port))).await {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => return Err(unknown(error.to_string())),
        Err(_) => return Err(endpoint.too_slow("resolving the name", limit)),
    };
    let mut distinct = Vec::new();
    for address in found {
        if !distinct.contains(&address) {
            distinct.push(address);
        }
    }
    if distinct.is_empty() { Err(unknown("the name has no address".into())) } else { Ok(distinct) }
}

/// One error for all: a broker that said no knows best; otherwise each place with its reason, once.
fn summary(errors: Vec<BrokerError>) -> BrokerError {
    let mut unreachable: Vec<(String, String)> = Vec::new();
    for error in errors {
        match error {
            BrokerError::Unreachable { place, reason } => {
                if !unreachable.contains(&(place.clone(), reason.clone())) {
                    unreachable.push((place, reason));
                }
            }
            said_no => return said_no,
        }
    }
    let mut rest = unreachable.into_iter();
    let (place, mut reason) = rest.next().unwrap_or_default();
    for (other, why) in rest {
        reason = format!("{reason}; {other}: {why}");
    }
    BrokerError::Unreachable { place, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 5672))
    }

    fn order(past: &Past) -> Vec<u8> {
        let mut ways = [3, 1, 2];
        past.sort(&mut ways, |last| address(*last), |address| address.to_string());
        ways.to_vec()
    }

    #[test]
    fn the_node_in_use_comes_first_and_the_last_failure_last() {
        let mut past = Past::default();
        assert_eq!(order(&past), [1, 2, 3]);
        past.current = Some(address(2));
        assert_eq!(order(&past), [2, 1, 3]);
        past.failed(address(2));
        assert_eq!(order(&past), [1, 3, 2]);
        past.current = Some(address(1));
        past.failed(address(3));
        assert_eq!(order(&past), [1, 2, 3]);
        past.failed(address(1));
        assert_eq!(order(&past), [2, 3, 1]);
    }

    #[test]
    fn what_a_broker_said_goes_before_what_could_not_be_reached() {
        let down = |place: &str| BrokerError::Unreachable { place: place.into(), reason: "refused".into() };
        let no = BrokerError::Refused { place: "b:1".into(), user: "me".into(), reason: "no".into() };
        assert!(matches!(summary(vec![down("a:1"), no, down("c:1")]), BrokerError::Refused { .. }));
        let all = summary(vec![down("a:1"), down("b:1"), down("a:1")]).to_string();
        assert_eq!(all, "broker a:1 is unreachable: refused; b:1: refused");
    }
}
