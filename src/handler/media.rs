//! What kind of file this is, as far as a console needs to know to show it.

/// The media type that a file name promises.
pub(super) fn media_type_of_name(name: &str) -> Option<&'static str> {
    let (_, extension) = name.rsplit_once('.')?;
    Some(match extension.to_ascii_lowercase().as_str() {
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "html" | "htm" => "text/html",
        "txt" | "log" => "text/plain",
        "json" => "application/json",
        "xml" => "application/xml",
        "csv" => "text/csv",
        "pdf" => "application/pdf",
        "zip" => "application/zip",
        _ => return None,
    })
}

/// The media type of a file: by its first bytes where they are unmistakable, else by its name, else by whether it is text.
pub(super) fn media_type(name: &str, bytes: &[u8]) -> &'static str {
    let by_magic = match bytes {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        [b'%', b'P', b'D', b'F', b'-', ..] => Some("application/pdf"),
        _ => None,
    };
    by_magic.or_else(|| media_type_of_name(name)).unwrap_or_else(|| media_type_of_bytes(bytes))
}

/// The media type of bytes without a name.
pub(super) fn media_type_of_bytes(bytes: &[u8]) -> &'static str {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}
