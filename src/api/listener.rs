//! A listener that silent clients cannot use up: so many connections at a time, and none that is silent for long.
//!
//! `axum::serve` has neither bound, and whoever connects holds a file descriptor long before signing in.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

/// How long a connection may neither read nor write: longer than the longest wait for a task's end.
const PATIENCE: Duration = Duration::from_secs(75);

/// Accepts no more connections than it has places; more of them wait in the system's queue.
pub(crate) struct Bounded {
    listener: TcpListener,
    places: Arc<Semaphore>,
    patience: Duration,
}

impl Bounded {
    pub(crate) fn new(listener: TcpListener, most: usize) -> Bounded {
        Bounded { listener, places: Arc::new(Semaphore::new(most)), patience: PATIENCE }
    }
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        // An error would mean that the semaphore is closed, which nobody does.
        let place = Arc::clone(&self.places).acquire_owned().await.ok();
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let patience = self.patience;
        let silence = Box::pin(sleep(patience));
        (Connection { stream, patience, moved_at: Instant::now(), silence, _place: place }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that holds its place and ends when nothing moves.
pub(crate) struct Connection {
    stream: TcpStream,
    patience: Duration,
    /// When something was last read or written.
    moved_at: Instant,
    silence: Pin<Box<Sleep>>,
    _place: Option<OwnedSemaphorePermit>,
}

impl Connection {
    /// Whether nothing has moved for too long; wakes the task when that may be so. The timer is set anew only when
    /// it rings, because that is rarer than something moving.
    fn is_silent(&mut self, cx: &mut Context<'_>) -> bool {
        while self.silence.as_mut().poll(cx).is_ready() {
            let end = self.moved_at + self.patience;
            if end <= Instant::now() {
                return true;
            }
            self.silence.as_mut().reset(end);
        }
        false
    }

    /// What the stream said, or the end of patience.
    fn bounded<T>(&mut self, cx: &mut Context<'_>, said: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if said.is_ready() {
            self.moved_at = Instant::now();
            return said;
        }
        if self.is_silent(cx) { Poll::Ready(Err(io::ErrorKind::TimedOut.into())) } else { Poll::Pending }
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let said = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.bounded(cx, said)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let said = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.bounded(cx, said)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let said = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.bounded(cx, said)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::timeout;

    use super::*;

    async fn bounded(patience: Duration) -> (Bounded, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (Bounded { patience, ..Bounded::new(listener, 1) }, address)
    }

    #[tokio::test]
    async fn who_says_nothing_for_too_long_is_cut_off() {
        let (mut bounded, address) = bounded(Duration::from_millis(50)).await;
        let _client = TcpStream::connect(address).await.unwrap();
        let (mut connection, _) = bounded.accept().await;
        assert_eq!(connection.read_u8().await.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn who_is_written_to_is_not_cut_off() {
        let (mut bounded, address) = bounded(Duration::from_millis(1_500)).await;
        let _client = TcpStream::connect(address).await.unwrap();
        let (mut connection, _) = bounded.accept().await;
        sleep(Duration::from_millis(900)).await;
        connection.write_all(b"x").await.unwrap();
        sleep(Duration::from_millis(900)).await;
        assert!(timeout(Duration::from_millis(1), connection.read_u8()).await.is_err(), "it still waits");
    }

    #[tokio::test]
    async fn one_connection_too_many_waits_for_a_place() {
        let (mut bounded, address) = bounded(PATIENCE).await;
        let _clients = (TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap());
        let first = bounded.accept().await;
        assert!(timeout(Duration::from_millis(50), bounded.accept()).await.is_err(), "there is no place");
        drop(first);
        assert!(timeout(Duration::from_secs(5), bounded.accept()).await.is_ok(), "there is one again");
    }
}
