//! The handlers against real third parties: a TCP server that misbehaves byte by byte, and real commands.

mod command;
mod function;
mod http;
mod http_hostile;
mod support;
mod tls;
