//! A folder of our own for stores that nobody keeps; removed when it is dropped.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// See the module.
pub struct Scratch {
    /// The folder.
    pub path: PathBuf,
}

impl Scratch {
    /// A new folder `within` another, by default in the system's place for temporary files. Its name cannot be guessed, so that nobody else has put anything there.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new(purpose: &str, within: Option<&Path>) -> anyhow::Result<Scratch> {
        let within = within.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let path = within.join(format!("redeliver-{purpose}-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&path).with_context(|| format!("cannot make the folder {}", path.display()))?;
        Ok(Scratch { path })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            tracing::warn!(folder = %self.path.display(), %error, "cannot remove a temporary folder");
        }
    }
}
