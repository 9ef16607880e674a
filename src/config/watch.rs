//! Sees that a config file has changed.
//!
//! It looks at the file's text instead of asking the system to be told (inotify, kqueue): a config file is a few kilobytes, reading it
//! costs microseconds, and its text is what counts. Notifications would have to follow every way in which a file changes: an
//! editor's rename over it, the symlink of a symlink that Kubernetes swaps (`..data`), a mount that appears, a network file system
//! that tells nothing.

use std::io;
use std::path::{Path, PathBuf};

/// Remembers what was seen of one file.
#[derive(Debug)]
pub struct FileWatch {
    path: PathBuf,
    /// The text that was last handed out.
    known: Option<String>,
    /// A text that was seen once: it counts when it is seen again, so that a file is not read while it is being written.
    fresh: Option<String>,
    absent: bool,
}

/// What a look found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// The file says what it said.
    Same,
    /// It says something else, and has for two looks.
    Changed(String),
    /// It cannot be read, since this look. What was read before holds.
    Gone(String),
}

impl FileWatch {
    /// Watches `path`. What it says at first is a change too: it may not be what the process has started with.
    pub fn new(path: PathBuf) -> FileWatch {
        FileWatch { path, known: None, fresh: None, absent: false }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file and compares.
    pub fn look(&mut self) -> Seen {
        self.see(std::fs::read(&self.path))
    }

    /// The text that is there now, whether it has changed or not: somebody asks for it.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub fn read(&mut self) -> Result<String, String> {
        let text = text_of(std::fs::read(&self.path))?;
        self.known = Some(text.clone());
        self.fresh = None;
        self.absent = false;
        Ok(text)
    }

    fn see(&mut self, read: io::Result<Vec<u8>>) -> Seen {
        let text = match text_of(read) {
            Ok(text) => text,
            Err(reason) => {
                self.fresh = None;
                return if std::mem::replace(&mut self.absent, true) { Seen::Same } else { Seen::Gone(reason) };
            }
        };
        self.absent = false;
        if self.known.as_ref() == Some(&text) {
            self.fresh = None;
            return Seen::Same;
        }
        if self.fresh.as_ref() != Some(&text) {
            self.fresh = Some(text);
            return Seen::Same;
        }
        self.fresh = None;
        self.known = Some(text.clone());
        Seen::Changed(text)
    }
}

fn text_of(read: io::Result<Vec<u8>>) -> Result<String, String> {
    let bytes = read.map_err(|error| error.to_string())?;
    String::from_utf8(bytes).map_err(|error| format!("is not UTF-8 text (byte {})", error.utf8_error().valid_up_to()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(text: &str) -> io::Result<Vec<u8>> {
        Ok(text.as_bytes().to_vec())
    }

    fn knowing(text: &str) -> FileWatch {
        FileWatch { known: Some(text.into()), ..FileWatch::new("x".into()) }
    }

    #[test]
    fn a_text_counts_when_it_is_seen_twice_so_that_half_a_file_never_does() {
        let mut watch = knowing("a");
        assert_eq!(watch.see(says("a")), Seen::Same);
        // An editor empties the file, writes a part, then the rest.
        let half = ["", "b", "bc", "bc", "bc"].map(|text| watch.see(says(text)));
        assert_eq!(half, [Seen::Same, Seen::Same, Seen::Same, Seen::Changed("bc".into()), Seen::Same]);
        // Back within a look is no change.
        assert_eq!(
            [watch.see(says("d")), watch.see(says("bc")), watch.see(says("d"))],
            [Seen::Same, Seen::Same, Seen::Same]
        );
    }

    #[test]
    fn a_file_that_goes_away_is_told_once_and_what_it_said_holds() {
        let mut watch = knowing("a");
        let gone = |watch: &mut FileWatch| watch.see(Err(io::Error::from(io::ErrorKind::NotFound)));
        assert!(matches!(gone(&mut watch), Seen::Gone(_)));
        assert_eq!(gone(&mut watch), Seen::Same);
        assert_eq!(watch.see(says("a")), Seen::Same);
        assert!(matches!(gone(&mut watch), Seen::Gone(_)));
        assert!(matches!(watch.see(Ok(vec![0xff])), Seen::Same));
        assert_eq!([watch.see(says("b")), watch.see(says("b"))], [Seen::Same, Seen::Changed("b".into())]);
    }

    #[test]
    fn renames_and_swapped_symlinks_are_changes() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        // As Kubernetes mounts a ConfigMap: file → ..data/file, and ..data is swapped by a rename.
        for (version, text) in [("v1", "a"), ("v2", "b")] {
            std::fs::create_dir(at(version)).unwrap();
            std::fs::write(at(version).join("file"), text).unwrap();
        }
        std::os::unix::fs::symlink("v1", at("..data")).unwrap();
        std::os::unix::fs::symlink("..data/file", at("file")).unwrap();
        let mut watch = FileWatch::new(at("file"));
        assert_eq!([watch.look(), watch.look()], [Seen::Same, Seen::Changed("a".into())], "the first text is a change");
        std::os::unix::fs::symlink("v2", at("..data_tmp")).unwrap();
        std::fs::rename(at("..data_tmp"), at("..data")).unwrap();
        assert_eq!([watch.look(), watch.look()], [Seen::Same, Seen::Changed("b".into())]);
        // As an editor saves: a new file is renamed over the old one.
        std::fs::write(at("new"), "c").unwrap();
        std::fs::rename(at("new"), at("file")).unwrap();
        assert_eq!([watch.look(), watch.look()], [Seen::Same, Seen::Changed("c".into())]);
    }
}
