//! Who gives a command.

/// The name of the user, or their number.
pub fn user() -> String {
    if let Some(name) = std::env::var("USER").ok().filter(|name| !name.trim().is_empty()) {
        return name;
    }
    // SAFETY: getuid takes nothing, touches no memory and cannot fail.
    let uid = unsafe { libc::getuid() };
    format!("uid {uid}")
}
