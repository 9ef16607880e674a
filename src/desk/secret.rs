//! Tokens, cookies and links: made of 256 random bits, kept as SHA-256 only.
//!
//! They are random enough that a plain hash cannot be searched, so a slow one would only slow every request down.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

/// Where a token begins, so that scanners for leaked secrets can know it.
pub const TOKEN_PREFIX: &str = "rdl_";

/// A new token. Shown once, then only its hash is known.
pub fn new_token() -> String {
    format!("{TOKEN_PREFIX}{}", random())
}

/// 256 random bits as text that fits into URLs and cookies.
pub fn random() -> String {
    URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>())
}

/// What the store keeps of a secret: SHA-256 in hex.
pub fn hash(secret: &str) -> String {
    hex::encode(Sha256::digest(secret.as_bytes()))
}

/// What a form of this session must bring back. Made of the cookie, which no other site can read.
pub fn csrf_of(cookie: &str) -> String {
    hash(&format!("csrf {cookie}"))
}

/// Whether two secrets are equal, in a time that does not tell where they differ.
pub fn same(a: &str, b: &str) -> bool {
    Sha256::digest(a.as_bytes()) == Sha256::digest(b.as_bytes())
}
