//! The two languages of the console. Every text of ours stands once in one table with both, so that the compiler refuses one that
//! is missing; what tasks and people say is never translated.

mod words;

/// A language of the console.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Lang {
    #[default]
    En,
    Zh,
}

impl Lang {
    pub(crate) const ALL: [Lang; 2] = [Lang::En, Lang::Zh];

    /// The word in the cookie.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Lang::En => "en",
            Lang::Zh => "zh",
        }
    }

    pub(crate) fn parse(word: &str) -> Option<Lang> {
        Lang::ALL.into_iter().find(|lang| lang.as_str() == word)
    }

    /// The language tag of the page (BCP 47).
    pub(crate) fn tag(self) -> &'static str {
        match self {
            Lang::En => "en",
            Lang::Zh => "zh-Hans",
        }
    }

    /// What its speakers call it.
    pub(crate) fn own_name(self) -> &'static str {
        match self {
            Lang::En => "English",
            Lang::Zh => "中文",
        }
    }

    /// The first language that a browser asks for and that there is: the header `Accept-Language`, whose order browsers keep.
    pub(crate) fn accepted(header: &str) -> Lang {
        let mut ranked: Vec<(f32, Lang)> = Vec::new();
        for part in header.split(',').take(20) {
            let (tag, rest) = part.split_once(';').unwrap_or((part, ""));
            let weight = rest.trim().strip_prefix("q=").map_or(Some(1.0), |weight| weight.parse().ok()).unwrap_or(0.0);
            let primary = tag.trim().split('-').next().unwrap_or_default().to_ascii_lowercase();
            if let Some(lang) = Lang::parse(&primary).filter(|_| weight > 0.0) {
                ranked.push((weight, lang));
            }
        }
        // Stable: of equals the first.
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
        ranked.first().map_or(Lang::En, |(_, lang)| *lang)
    }

    pub(crate) fn last_minutes(self, n: usize) -> String {
        match self {
            Lang::En => format!("last {n} min"),
            Lang::Zh => format!("最近 {n} 分钟"),
        }
    }

    pub(crate) fn in_last_minutes(self, n: usize) -> String {
        match self {
            Lang::En => format!("in {n} min"),
            Lang::Zh => format!("（{n} 分钟内）"),
        }
    }

    pub(crate) fn in_n_groups(self, n: usize) -> String {
        match (self, n) {
            (Lang::En, 1) => "in 1 group".to_owned(),
            (Lang::En, n) => format!("in {n} groups"),
            (Lang::Zh, n) => format!("封，共 {n} 组"),
        }
    }

    pub(crate) fn n_workers(self, n: usize) -> String {
        match (self, n) {
            (Lang::En, 1) => "by 1 worker".to_owned(),
            (Lang::En, n) => format!("by {n} workers"),
            (Lang::Zh, n) => format!("{n} 个工作进程"),
        }
    }

    pub(crate) fn replay_n(self, n: &str) -> String {
        match self {
            Lang::En => format!("Replay {n}"),
            Lang::Zh => format!("重放 {n} 封"),
        }
    }

    pub(crate) fn discard_n(self, n: &str) -> String {
        match self {
            Lang::En => format!("Discard {n}"),
            Lang::Zh => format!("丢弃 {n} 封"),
        }
    }

    /// What an action has done, told by its word and how many things it changed.
    pub(crate) fn done(self, word: &str, n: i64) -> Option<String> {
        let text = match word {
            "discarded" => match self {
                Lang::En => format!("{n} discarded."),
                Lang::Zh => format!("已丢弃 {n} 封。"),
            },
            "skipped" => match self {
                Lang::En => format!("Nothing was changed: {n} had moved on."),
                Lang::Zh => format!("没有改动：{n} 个任务的状态已变化。"),
            },
            "replay" => self.done_replay().to_owned(),
            "edited" => self.done_edited().to_owned(),
            "run-now" => self.done_run_now().to_owned(),
            "cancelled" => self.done_cancelled().to_owned(),
            "opened" => self.done_opened().to_owned(),
            "closed" => self.done_closed().to_owned(),
            "paused" => self.done_paused().to_owned(),
            "resumed" => self.done_resumed().to_owned(),
            "noted" => self.done_noted().to_owned(),
            _ => return None,
        };
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_language_asked_for_is_spoken() {
        for (header, lang) in [
            ("zh-CN,zh;q=0.9,en;q=0.8", Lang::Zh),
            ("en-GB,en;q=0.9,zh;q=0.8", Lang::En),
            ("de-DE,zh;q=0.5,en;q=0.4", Lang::Zh),
            ("en;q=0.1, zh-TW", Lang::Zh),
            ("zh;q=0", Lang::En),
            ("", Lang::En),
            (";;;,,,q=zh;=", Lang::En),
        ] {
            assert_eq!(Lang::accepted(header), lang, "{header}");
        }
    }
}
