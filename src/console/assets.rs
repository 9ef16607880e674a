//! The stylesheet, the script and the icon, inside the program and under addresses that change with their content.

use std::sync::LazyLock;

use sha2::{Digest, Sha256};

/// A file of the console.
pub(crate) struct Asset {
    name: &'static str,
    pub media_type: &'static str,
    pub text: &'static str,
    hash: LazyLock<String>,
}

macro_rules! asset {
    ($name:literal, $media_type:literal) => {{
        const TEXT: &str = include_str!(concat!("assets/", $name));
        Asset { name: $name, media_type: $media_type, text: TEXT, hash: LazyLock::new(|| hash(TEXT)) }
    }};
}

pub(crate) static STYLE: Asset = asset!("console.css", "text/css; charset=utf-8");
pub(crate) static SCRIPT: Asset = asset!("console.js", "text/javascript; charset=utf-8");
pub(crate) static ICON: Asset = asset!("icon.svg", "image/svg+xml");

impl Asset {
    /// Where it is, for as long as it says what it says.
    pub(crate) fn path(&self) -> String {
        format!("/assets/{}/{}", *self.hash, self.name)
    }

    /// The asset at the end of a path; one with another hash is another version's.
    pub(crate) fn find(hash: &str, name: &str) -> Option<&'static Asset> {
        [&STYLE, &SCRIPT, &ICON].into_iter().find(|asset| asset.name == name && *asset.hash == hash)
    }
}

fn hash(text: &str) -> String {
    hex::encode(&Sha256::digest(text)[..6])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assets_are_found_by_their_own_hash_only() {
        let path = STYLE.path();
        let parts: Vec<&str> = path.rsplit('/').collect();
        assert!(Asset::find(parts[1], parts[0]).is_some(), "{path}");
        assert!(Asset::find("0123456789ab", "console.css").is_none());
    }

    #[test]
    fn the_script_is_small_and_nothing_of_it_names_another_host() {
        assert!(SCRIPT.text.lines().count() <= 300);
        for asset in [&STYLE, &SCRIPT] {
            assert!(!asset.text.contains("//www") && !asset.text.contains("https:"), "{}", asset.name);
        }
    }
}
