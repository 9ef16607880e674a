//! HTTPS: a certificate authority of the route's own, and what is no TLS.
//!
//! The certificates in `certs/` are for `localhost` and 127.0.0.1, signed by a test authority whose key was thrown away.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;

use redeliver::handler::HttpRoute;
use redeliver::handler::http::install_crypto;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::http::{route, run};
use super::support::{failed, response, succeeded};

fn cert(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/handlers/certs").join(name)
}

/// Serves one HTTPS request on a thread of its own.
fn https_server() -> SocketAddr {
    install_crypto();
    let chain = CertificateDer::pem_file_iter(cert("server.pem")).unwrap().collect::<Result<Vec<_>, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_file(cert("server.key")).unwrap();
    let config = rustls::ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut session = rustls::ServerConnection::new(Arc::new(config)).unwrap();
        let mut stream = rustls::Stream::new(&mut session, &mut socket);
        let mut buffer = [0; 4096];
        // The handshake fails when the client does not trust us; that is its business.
        if stream.read(&mut buffer).is_ok() {
            stream.write_all(&response("200 OK", "", "over TLS")).unwrap();
            stream.conn.send_close_notify();
            stream.flush().unwrap();
        }
    });
    address
}

#[tokio::test]
async fn a_certificate_of_the_routes_own_authority_is_trusted() {
    let mut wanted = route(&format!("https://localhost:{}/", https_server().port()));
    wanted.ca_file = Some(cert("ca.pem"));
    assert_eq!(succeeded(&run(wanted).await.outcome).unwrap().body, b"over TLS");
}

/// Needs the system's certificates, as HTTPS itself does; a machine without any refuses the route instead.
#[tokio::test]
async fn a_certificate_of_an_unknown_authority_is_a_network_failure() {
    use redeliver::handler::http::{HttpHandler, HttpRouteError};
    use redeliver::handler::{Caps, Handler};
    let wanted = route(&format!("https://localhost:{}/", https_server().port()));
    match HttpHandler::new(wanted, Caps::default()) {
        Ok(handler) => {
            let (failure, ..) = failed(&handler.run(super::support::attempt("null")).await.outcome);
            assert_eq!(failure.class, "network");
            assert!(failure.message.contains("certificate"), "{}", failure.message);
        }
        Err(error) => assert!(matches!(&error, HttpRouteError::Client(why) if why.contains("certificate")), "{error}"),
    }
}

#[tokio::test]
async fn what_is_no_tls_is_a_network_failure() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        socket.write_all(&response("400 Bad Request", "", "")).unwrap();
    });
    let wanted = HttpRoute { ca_file: Some(cert("ca.pem")), ..route(&format!("https://{address}/")) };
    let (failure, ..) = failed(&run(wanted).await.outcome);
    assert_eq!(failure.class, "network");
}
