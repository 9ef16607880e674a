//! Calls a third party over HTTP.
