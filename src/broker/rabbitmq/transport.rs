//! The socket under a lapin connection: what comes from the broker goes through a [`Sieve`], and its greeting is heard.
//!
//! lapin takes any runtime whose TCP stream is a byte stream, so ours has one that is plain TCP or TLS inside. Everything else
//! is tokio's.

use std::future::Future;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use async_rs::traits::Reactor;
use async_rs::util::RuntimeParts;
use async_rs::{Runtime, Tokio, TokioRuntime};
use futures_util::Stream;
use futures_util::io::{AsyncRead, AsyncWrite};
use lapin::tcp::{AsyncTcpStream, OwnedTLSConfig};
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{Connection, ConnectionProperties};

use super::greeting::Greeting;
use super::sieve::Sieve;

const READ_AT_ONCE: usize = 32 * 1024;

/// Connects to the host of `uri` at `address` and logs in; `greeting` hears what the broker says first.
pub(super) async fn connect(
    uri: AMQPUri,
    address: SocketAddr,
    tls: Arc<OwnedTLSConfig>,
    properties: ConnectionProperties,
    greeting: Arc<Greeting>,
) -> lapin::Result<Connection> {
    let tokio = Runtime::tokio_current();
    let runtime = Runtime::new(RuntimeParts::new(tokio.clone(), Ours(tokio.clone())));
    let open = async move |uri: AMQPUri, _: Runtime<RuntimeParts<TokioRuntime, Ours>>| {
        let inner = AsyncTcpStream::connect(&tokio, address).await?;
        let inner = match uri.scheme {
            AMQPScheme::AMQP => inner,
            AMQPScheme::AMQPS => inner.into_tls(&uri.authority.host, tls.as_ref().as_ref()).await?,
        };
        let socket =
            Socket { inner, sieve: Sieve::default(), buffer: vec![0; READ_AT_ONCE].into(), greeting: greeting.clone() };
        Ok(AsyncTcpStream::Plain(socket))
    };
    Connection::connector(uri, runtime, open, properties).await
}

/// Plain TCP or TLS, as tokio's runtime makes it.
type Inner = AsyncTcpStream<<Tokio as Reactor>::TcpStream>;

struct Socket {
    inner: Inner,
    sieve: Sieve,
    buffer: Box<[u8]>,
    greeting: Arc<Greeting>,
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut [u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        loop {
            let passed = this.sieve.take(out);
            if passed > 0 || out.is_empty() {
                return Poll::Ready(Ok(passed));
            }
            let read = ready!(Pin::new(&mut this.inner).poll_read(cx, &mut this.buffer))?;
            if read == 0 {
                return Poll::Ready(Ok(0));
            }
            let greeting = &this.greeting;
            this.sieve.put(&this.buffer[..read], |frame| greeting.hear(frame)).map_err(io::Error::other)?;
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_close(cx)
    }
}

/// Tokio's reactor with our [`Socket`] for its TCP stream. lapin asks it for nothing but timers: sockets come from the function
/// that [`connect`] gives it.
#[derive(Debug, Clone)]
struct Ours(TokioRuntime);

impl Reactor for Ours {
    type TcpStream = Socket;
    type Sleep = <TokioRuntime as Reactor>::Sleep;

    // The trait asks for a bound that cannot be named outside of its crate; an implementation may do without it.
    fn register<H: Read + Write + Send + 'static>(
        &self,
        _socket: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        Err::<Socket, _>(io::ErrorKind::Unsupported.into())
    }

    fn sleep(&self, duration: Duration) -> Self::Sleep {
        self.0.sleep(duration)
    }

    fn interval(&self, duration: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.0.interval(duration)
    }

    fn tcp_connect_addr(&self, _: SocketAddr) -> impl Future<Output = io::Result<Socket>> + Send + 'static {
        std::future::ready(Err(io::ErrorKind::Unsupported.into()))
    }
}
