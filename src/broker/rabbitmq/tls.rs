//! Whom we trust behind `amqps://`, and who we are there.
//!
//! The system's certificate authorities are always trusted; an own one comes on top. Names are always checked: there is no way to
//! turn that off.

use std::path::{Path, PathBuf};

use lapin::tcp::{OwnedIdentity, OwnedTLSConfig};

use crate::broker::BrokerError;

/// Files for `amqps://`, all PEM.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tls {
    /// Certificate authorities that are trusted besides the system's.
    pub ca_file: Option<PathBuf>,
    /// Our own certificate, with those between it and its authority, and its private key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    /// Reads the files.
    pub(super) fn read(&self) -> Result<OwnedTLSConfig, BrokerError> {
        let cert_chain = match &self.ca_file {
            Some(path) => {
                let text = String::from_utf8(read(path)?).map_err(|_| bad(path, "is no PEM text"))?;
                if !text.contains("-----BEGIN CERTIFICATE-----") {
                    return Err(bad(path, "holds no PEM certificate"));
                }
                Some(text)
            }
            None => None,
        };
        let identity = match &self.identity {
            Some((certificate, key)) => {
                let (pem, key_pem) = (read(certificate)?, read(key)?);
                if !contains(&pem, b"-----BEGIN CERTIFICATE-----") {
                    return Err(bad(certificate, "holds no PEM certificate"));
                }
                if !contains(&key_pem, b"PRIVATE KEY-----") {
                    return Err(bad(key, "holds no PEM private key"));
                }
                Some(OwnedIdentity::PKCS8 { pem, key: key_pem })
            }
            None => None,
        };
        Ok(OwnedTLSConfig { identity, cert_chain })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, BrokerError> {
    std::fs::read(path).map_err(|error| bad(path, &error.to_string()))
}

fn bad(path: &Path, reason: &str) -> BrokerError {
    BrokerError::BadTls { file: path.display().to_string(), reason: reason.to_owned() }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}
