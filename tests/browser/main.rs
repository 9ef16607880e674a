//! The console in a real browser: the story of a night on call, by day and by night, on a phone, without scripts; and what others
//! wrote, however they meant it.

mod chrome;
mod contrast;
mod desk;
mod hostile;
mod night;
mod png;
mod roles;
mod story;
