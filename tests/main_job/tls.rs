//! `amqps`: whom we trust, who we are, and what is said when it does not fit. A proxy that speaks TLS stands before the broker.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::rig::Rig;
use crate::support::with_vhost;
use crate::third_party::ThirdParty;

/// A certificate authority of our own.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: rcgen::Certificate,
}

/// A certificate and its key.
struct Identity {
    certificate: rcgen::Certificate,
    key: KeyPair,
}

impl Authority {
    fn new(name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        Authority { issuer: Issuer::new(params, key), certificate }
    }

    fn identity(&self, names: &[&str], last_year: Option<i32>) -> Identity {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("good names");
        params.distinguished_name.push(DnType::CommonName, "redeliver test");
        if let Some(year) = last_year {
            params.not_before = rcgen::date_time_ymd(year - 1, 1, 1);
            params.not_after = rcgen::date_time_ymd(year, 1, 1);
        }
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        Identity { certificate, key }
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.der().clone()).expect("a root");
        roots
    }
}

impl Identity {
    fn write(&self, folder: &Path, name: &str) -> (PathBuf, PathBuf) {
        let (certificate, key) = (folder.join(format!("{name}.pem")), folder.join(format!("{name}.key")));
        std::fs::write(&certificate, self.certificate.pem()).expect("written");
        std::fs::write(&key, self.key.serialize_pem()).expect("written");
        (certificate, key)
    }
}

/// Speaks TLS as `server` and passes everything on to the broker. Returns its port.
async fn tls_before_the_broker(broker: &str, server: &Identity, clients: Option<&Authority>) -> u16 {
    let broker = broker.to_owned();
    redeliver::handler::http::install_crypto();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(server.key.serialize_der()));
    let builder = match clients {
        Some(authority) => {
            let verifier = WebPkiClientVerifier::builder(Arc::new(authority.roots())).build().expect("a verifier");
            ServerConfig::builder().with_client_cert_verifier(verifier)
        }
        None => ServerConfig::builder().with_no_client_auth(),
    };
    let config = builder.with_single_cert(vec![server.certificate.der().clone()], key).expect("a usable certificate");
    serve_tls(broker, config).await
}

/// Passes what comes over TLS on to the broker. Returns the port.
async fn serve_tls(broker: String, config: ServerConfig) -> u16 {
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (acceptor, broker) = (acceptor.clone(), broker.clone());
            tokio::spawn(async move {
                // Most of these tests are about handshakes that fail.
                let Ok(mut tls) = acceptor.accept(socket).await else { return };
                let Ok(mut broker) = TcpStream::connect(broker).await else { return };
                tokio::io::copy_bidirectional(&mut tls, &mut broker).await.ok();
            });
        }
    });
    port
}

#[tokio::test]
async fn tasks_run_over_amqps_with_an_own_authority_and_a_client_certificate() {
    with_vhost(async |vhost| {
        let folder = tempfile::tempdir().expect("a folder");
        let authority = Authority::new("an authority of our own");
        let (ca, _) = Identity { certificate: authority.certificate.clone(), key: KeyPair::generate().expect("a key") }
            .write(folder.path(), "ca");
        let (certificate, key) = authority.identity(&["worker"], None).write(folder.path(), "worker");
        let server = authority.identity(&["localhost", "127.0.0.1"], None);
        let port = tls_before_the_broker(&vhost.address(), &server, Some(&authority)).await;
        let party = ThirdParty::healthy().await;
        let rig = Rig::new(&vhost, &party.route("10s")).await;
        let files = format!("ca_file = {ca:?}\ncert_file = {certificate:?}\nkey_file = {key:?}");
        // By name and by address: the certificate has both.
        for host in ["localhost", "127.0.0.1"] {
            let url = vhost.url_at(&format!("{host}:{port}")).replace("amqp://", "amqps://");
            rig.rewrite_broker_with(&url, &files, &party.route("10s"));
            let said = rig.run(&["topology", "apply", "--yes"]).await;
            assert_eq!(said.code, Some(0), "{said:?}");
        }
        let _worker = rig.worker();
        let said = rig.run(&["publish", "test.call", "--id", "over-tls", "--payload", "1", "--wait"]).await;
        assert_eq!(said.code, Some(0), "{said:?}");
        assert!(said.stdout.contains("succeeded"), "{said:?}");
    })
    .await;
}

#[tokio::test]
async fn a_certificate_that_does_not_fit_is_refused_with_7_and_its_reason_in_one_line() {
    with_vhost(async |vhost| {
        let folder = tempfile::tempdir().expect("a folder");
        let (authority, stranger) = (Authority::new("ours"), Authority::new("a stranger"));
        let (ca, _) = Identity { certificate: authority.certificate.clone(), key: KeyPair::generate().expect("a key") }
            .write(folder.path(), "ca");
        let party = ThirdParty::healthy().await;
        let rig = Rig::new(&vhost, &party.route("10s")).await;
        let good = authority.identity(&["127.0.0.1"], None);
        let cases = [
            ("of an unknown authority", stranger.identity(&["127.0.0.1"], None), None, "UnknownIssuer"),
            ("for another host", authority.identity(&["rabbit.example.com"], None), None, "not valid for name"),
            ("expired", authority.identity(&["127.0.0.1"], Some(2020)), None, "expired"),
            ("and none of ours", good, Some(&authority), "CertificateRequired"),
        ];
        for (case, server, clients, reason) in cases {
            let port = tls_before_the_broker(&vhost.address(), &server, clients).await;
            let url = vhost.url_at(&format!("127.0.0.1:{port}")).replace("amqp://", "amqps://");
            rig.rewrite_broker_with(&url, &format!("ca_file = {ca:?}"), &party.route("10s"));
            let said = rig.run(&["--timeout", "10s", "topology", "plan"]).await;
            assert_eq!(said.code, Some(7), "{case}: {said:?}");
            let lines: Vec<&str> = said.stderr.lines().filter(|line| line.contains(&port.to_string())).collect();
            assert_eq!(lines.len(), 1, "{case}: {said:?}");
            assert!(lines[0].contains(reason), "{case}: {said:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn the_host_name_is_sent_so_that_a_front_of_many_names_shows_the_right_certificate() {
    with_vhost(async |vhost| {
        redeliver::handler::http::install_crypto();
        let folder = tempfile::tempdir().expect("a folder");
        let authority = Authority::new("ours");
        let (ca, _) = Identity { certificate: authority.certificate.clone(), key: KeyPair::generate().expect("a key") }
            .write(folder.path(), "ca");
        // A front like this knows no default: whoever sends no name, or another one, is turned away.
        let server = authority.identity(&["localhost"], None);
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(server.key.serialize_der()));
        let key = rustls::crypto::ring::sign::any_supported_type(&key).expect("a usable key");
        let certified = rustls::sign::CertifiedKey::new(vec![server.certificate.der().clone()], key);
        let mut by_name = rustls::server::ResolvesServerCertUsingSni::new();
        by_name.add("localhost", certified).expect("a name of the certificate");
        let config = ServerConfig::builder().with_no_client_auth().with_cert_resolver(Arc::new(by_name));
        let port = serve_tls(vhost.address(), config).await;
        let party = ThirdParty::healthy().await;
        let rig = Rig::new(&vhost, &party.route("10s")).await;
        for (host, code) in [("localhost", 0), ("127.0.0.1", 7)] {
            let url = vhost.url_at(&format!("{host}:{port}")).replace("amqp://", "amqps://");
            rig.rewrite_broker_with(&url, &format!("ca_file = {ca:?}"), &party.route("10s"));
            let said = rig.run(&["--timeout", "10s", "topology", "plan"]).await;
            assert_eq!(said.code, Some(code), "{host}: {said:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_client_certificate_of_a_stranger_is_refused_with_7() {
    with_vhost(async |vhost| {
        let folder = tempfile::tempdir().expect("a folder");
        let (authority, stranger) = (Authority::new("ours"), Authority::new("a stranger"));
        let (ca, _) = Identity { certificate: authority.certificate.clone(), key: KeyPair::generate().expect("a key") }
            .write(folder.path(), "ca");
        let (certificate, key) = stranger.identity(&["worker"], None).write(folder.path(), "worker");
        let server = authority.identity(&["127.0.0.1"], None);
        let port = tls_before_the_broker(&vhost.address(), &server, Some(&authority)).await;
        let party = ThirdParty::healthy().await;
        let rig = Rig::new(&vhost, &party.route("10s")).await;
        let files = format!("ca_file = {ca:?}\ncert_file = {certificate:?}\nkey_file = {key:?}");
        let url = vhost.url_at(&format!("127.0.0.1:{port}")).replace("amqp://", "amqps://");
        rig.rewrite_broker_with(&url, &files, &party.route("10s"));
        let said = rig.run(&["--timeout", "10s", "topology", "plan"]).await;
        assert_eq!(said.code, Some(7), "{said:?}");
        assert!(said.stderr.contains(&format!("127.0.0.1:{port}")), "{said:?}");
    })
    .await;
}

#[tokio::test]
async fn files_for_amqps_that_cannot_be_used_are_named() {
    with_vhost(async |vhost| {
        let folder = tempfile::tempdir().expect("a folder");
        let party = ThirdParty::healthy().await;
        let rig = Rig::new(&vhost, &party.route("10s")).await;
        let nonsense = folder.path().join("nonsense.pem");
        std::fs::write(&nonsense, "no certificate").expect("written");
        let url = vhost.url_at("127.0.0.1:5671").replace("amqp://", "amqps://");
        for (files, code, text) in [
            (format!("ca_file = {nonsense:?}"), 2, "holds no PEM certificate"),
            ("ca_file = \"/does/not/exist.pem\"".to_owned(), 2, "/does/not/exist.pem"),
            (format!("cert_file = {nonsense:?}"), 2, "cert_file: expected key_file beside it"),
        ] {
            rig.rewrite_broker_with(&url, &files, &party.route("10s"));
            let said = rig.run(&["--timeout", "5s", "topology", "plan"]).await;
            assert_eq!(said.code, Some(code), "{files}: {said:?}");
            assert!(said.stderr.contains(text), "{files}: {said:?}");
        }
    })
    .await;
}
