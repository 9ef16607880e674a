//! The console in a real browser: the story of a night on call, at both ends of the day, on a phone, without scripts.

mod chrome;
mod desk;
mod night;
mod png;
mod story;
