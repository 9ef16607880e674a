//! Addresses of the console: parts encoded, so that an id or a filter with any character in it comes back as it was.

/// Percent-encodes everything but letters, digits and `-._~`.
pub(crate) fn encode(part: &str) -> String {
    let mut encoded = String::with_capacity(part.len());
    for byte in part.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// `name=value&…`, encoded.
pub(crate) fn query<N: AsRef<str>, V: AsRef<str>>(pairs: impl IntoIterator<Item = (N, V)>) -> String {
    let pairs: Vec<String> = pairs
        .into_iter()
        .map(|(name, value)| format!("{}={}", encode(name.as_ref()), encode(value.as_ref())))
        .collect();
    pairs.join("&")
}

/// A page below the console with a query; without pairs, without `?`.
pub(crate) fn to<N: AsRef<str>, V: AsRef<str>>(path: &str, pairs: impl IntoIterator<Item = (N, V)>) -> String {
    match query(pairs) {
        query if query.is_empty() => path.to_owned(),
        query => format!("{path}?{query}"),
    }
}

/// The page of a task.
pub(crate) fn task(id: &str) -> String {
    // A path segment `.` or `..` is resolved away by browsers, encoded or not.
    match id {
        "." | ".." => format!("/task?{}", query([("id", id)])),
        id => format!("/tasks/{}", encode(id)),
    }
}

/// Whether an address is a path of this server: nothing else may be redirected to.
pub(crate) fn is_local(address: &str) -> bool {
    let is_plain = address.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    address.starts_with('/') && !address.starts_with("//") && is_plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_id_makes_one_path_segment() {
        assert_eq!(task("order-1"), "/tasks/order-1");
        assert_eq!(task("a/b?c#d e"), "/tasks/a%2Fb%3Fc%23d%20e");
        assert_eq!(task(".."), "/task?id=..");
        assert_eq!(to("/tasks", [("text", "a&b=ü")]), "/tasks?text=a%26b%3D%C3%BC");
        assert_eq!(to("/tasks", [] as [(&str, &str); 0]), "/tasks");
    }

    #[test]
    fn only_paths_of_this_server_are_redirected_to() {
        for good in ["/", "/dead?x=1", "/tasks?a=//b"] {
            assert!(is_local(good), "{good}");
        }
        for bad in ["", "//evil.example", "https://evil.example/", "/\\evil.example", "/dead\r\nx: y"] {
            assert!(!is_local(bad), "{bad:?}");
        }
    }
}
