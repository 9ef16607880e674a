//! The attempt folder: the command's result file and what it left for people.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use uuid::Uuid;

use crate::handler::Caps;
use crate::handler::media::media_type;
use crate::task::{Attachment, AttachmentBody};

/// The file in which a command says what came of it.
pub(super) const RESULT_FILE: &str = "result.json";

/// A fresh folder that nobody else may enter, removed when this is dropped.
pub(super) struct Folder(PathBuf);

impl Folder {
    /// Makes one in the system's folder for temporary files.
    pub fn new() -> io::Result<Folder> {
        let path = std::env::temp_dir().join(format!("redeliver-attempt-{}", Uuid::new_v4()));
        // Fails if it exists: another's folder is never ours to remove.
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Folder(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The result file's bytes, `None` when the command wrote none.
    pub fn result_file(&self, longest: usize) -> Result<Option<Vec<u8>>, String> {
        let path = self.0.join(RESULT_FILE);
        let file = match open_regular(&path) {
            Ok(Some(file)) => file,
            Ok(None) => return Err("is no regular file".into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("cannot be read: {error}")),
        };
        let (bytes, size) = read_up_to(file, longest as u64).map_err(|error| format!("cannot be read: {error}"))?;
        if size > longest as u64 {
            return Err(format!("is {size} bytes long, at most {longest} are read"));
        }
        Ok(Some(bytes))
    }

    /// Every regular file but the result, in the order of their names; folders and links are not followed.
    pub fn attachments(&self, caps: Caps) -> Vec<Attachment> {
        let entries = match std::fs::read_dir(&self.0) {
            Ok(entries) => entries,
            Err(error) => {
                tracing::warn!(%error, "a command's attempt folder cannot be read");
                return Vec::new();
            }
        };
        let mut names: Vec<_> = entries
            .filter_map(Result::ok)
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
            .map(|entry| entry.file_name())
            .filter(|name| name != RESULT_FILE)
            .collect();
        names.sort();
        if names.len() > caps.attachments {
            tracing::warn!(files = names.len(), kept = caps.attachments, "a command left too many files");
        }
        names.iter().take(caps.attachments).filter_map(|name| attachment(&self.0, name, caps)).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A command may have taken our own right to write there.
        let removed = std::fs::remove_dir_all(&self.0).or_else(|_| {
            std::fs::set_permissions(&self.0, Permissions::from_mode(0o700))?;
            std::fs::remove_dir_all(&self.0)
        });
        if let Err(error) = removed {
            tracing::warn!(folder = %self.0.display(), %error, "an attempt folder could not be removed");
        }
    }
}

fn attachment(folder: &Path, name: &std::ffi::OsStr, caps: Caps) -> Option<Attachment> {
    let file = open_regular(&folder.join(name)).ok()??;
    let (bytes, size) = read_up_to(file, caps.attachment).ok()?;
    let name = name.to_string_lossy().into_owned();
    let media_type = media_type(&name, &bytes).to_owned();
    let body = if size > caps.attachment {
        AttachmentBody::TooLarge { size }
    } else {
        AttachmentBody::Bytes(Arc::from(bytes))
    };
    Some(Attachment { name, media_type, body })
}

/// Opens a regular file. `None` for anything else: a link would let a command show us any file of this machine, and opening a pipe
/// would wait for its writer.
fn open_regular(path: &Path) -> io::Result<Option<File>> {
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(file.metadata()?.is_file().then_some(file))
}

/// At most `longest` bytes of a file, and its size.
fn read_up_to(file: File, longest: u64) -> io::Result<(Vec<u8>, u64)> {
    let size = file.metadata()?.len();
    let mut bytes = Vec::new();
    // One byte more shows a file that grew since.
    file.take(longest.saturating_add(1)).read_to_end(&mut bytes)?;
    let size = size.max(bytes.len() as u64);
    if size > longest {
        // Enough to see what kind of file it is.
        bytes.truncate(64);
    }
    Ok((bytes, size))
}
