//! What the pages owe each other: the README in two languages says the same, links lead somewhere, every alert has its page.
//!
//! Commands in them are only shown to the program here, which must understand them; what they do is tested where they are run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const ENGLISH: &str = include_str!("../README.md");
const CHINESE: &str = include_str!("../README.zh.md");
const OPERATIONS: &str = include_str!("../docs/operations.md");

/// A page taken apart.
#[derive(Default)]
struct Page {
    /// Fenced blocks: the language, and the lines without their comments, which a translation translates.
    blocks: Vec<(String, String)>,
    /// What stands between backticks, outside of blocks.
    codes: BTreeSet<String>,
    /// Numbers of two digits and more, outside of blocks and backticks.
    numbers: BTreeMap<String, usize>,
    /// Where links and pictures lead.
    links: BTreeSet<String>,
    /// Headings, by level.
    headings: Vec<usize>,
    /// Rows of tables, by the number of their cells.
    rows: Vec<usize>,
}

fn without_comment(language: &str, line: &str) -> String {
    let sign = if language == "js" { "// " } else { "# " };
    let at = match line.find(sign) {
        Some(0) if !language.is_empty() => 0,
        Some(at) if !language.is_empty() && line[..at].ends_with(' ') => at,
        _ => line.len(),
    };
    line[..at].trim_end().to_owned()
}

fn page(text: &str) -> Page {
    let mut page = Page::default();
    let mut fence: Option<(String, String)> = None;
    let mut prose = String::new();
    for line in text.lines() {
        if let Some(language) = line.strip_prefix("```") {
            match fence.take() {
                Some(block) => page.blocks.push(block),
                None => fence = Some((language.to_owned(), String::new())),
            }
        } else if let Some((language, lines)) = &mut fence {
            let line = without_comment(language, line);
            lines.push_str(&line);
            lines.push('\n');
        } else {
            if line.starts_with('#') {
                page.headings.push(line.chars().take_while(|c| *c == '#').count());
            }
            if line.starts_with('|') {
                page.rows.push(line.matches('|').count());
            }
            prose.push_str(line);
            prose.push('\n');
        }
    }
    assert!(fence.is_none(), "a code block does not end");
    for (n, part) in prose.split('`').enumerate() {
        if n % 2 == 1 {
            page.codes.insert(part.to_owned());
        } else {
            let links = part.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
            page.links.extend(links.map(str::to_owned));
            for number in part.split(|c: char| !c.is_ascii_digit() && c != ',' && c != '.') {
                let number = number.trim_matches([',', '.']);
                if number.len() > 1 && number.starts_with(|c: char| c.is_ascii_digit()) {
                    *page.numbers.entry(number.to_owned()).or_default() += 1;
                }
            }
        }
    }
    page
}

#[test]
fn the_readme_in_chinese_has_the_same_commands_words_and_figures() {
    let (english, chinese) = (page(ENGLISH), page(CHINESE));
    assert_eq!(english.headings, chinese.headings, "headings");
    assert_eq!(english.blocks.len(), chinese.blocks.len(), "code blocks");
    for (ours, theirs) in english.blocks.iter().zip(&chinese.blocks) {
        assert_eq!(ours, theirs, "a code block differs");
    }
    let missing: Vec<_> = english.codes.difference(&chinese.codes).collect();
    let more: Vec<_> = chinese.codes.difference(&english.codes).collect();
    assert!(missing.is_empty() && more.is_empty(), "missing in README.zh.md: {missing:?}; only there: {more:?}");
    assert_eq!(english.numbers, chinese.numbers, "figures");
    assert_eq!(english.rows, chinese.rows, "tables");
    let elsewhere = |page: &Page| {
        let links = page.links.iter().filter(|link| !link.starts_with("README"));
        links.cloned().collect::<BTreeSet<_>>()
    };
    assert_eq!(elsewhere(&english), elsewhere(&chinese), "links");
}

/// Every page of the tree, by its path from the top.
fn pages() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in ["", "docs", "deploy/kubernetes", "examples", "benches/compare"] {
        let Ok(entries) = std::fs::read_dir(root.join(folder)) else { continue };
        for entry in entries {
            let path = entry.expect("a file").path();
            if path.extension().is_some_and(|extension| extension == "md") {
                files.push((path.clone(), std::fs::read_to_string(&path).expect("a page")));
            }
        }
    }
    assert!(files.len() > 3, "{files:?}");
    files
}

/// The words of a command line as a shell would split it, up to a pipe, a redirection or a comment.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '|' | '>' | '#' | '&' | ';') if word.is_none() => break,
            (None, ' ') => words.extend(word.take()),
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// Every command line of ours in a page: lines of its shell blocks, and what stands between backticks.
fn commands(text: &str) -> BTreeSet<String> {
    let page = page(text);
    let blocks = page.blocks.iter().filter(|(language, _)| language == "sh");
    let lines = blocks.flat_map(|(_, lines)| lines.lines()).map(str::to_owned);
    // An ellipsis says that there is more; a space before it, that there is another argument.
    let inline = page.codes.iter().filter(|code| !code.contains('…')).cloned();
    lines.chain(inline).filter(|line| line.starts_with("redeliver ")).collect()
}

#[test]
fn the_program_understands_every_command_in_the_pages() {
    let folder = std::env::temp_dir();
    let mut seen = 0;
    for (path, text) in pages().into_iter().filter(|(path, _)| !path.ends_with("CHANGELOG.md")) {
        for line in commands(&text) {
            let words = words(&line);
            // These need no configuration, so they would run.
            if ["demo", "simulate"].contains(&words[1].as_str()) {
                continue;
            }
            let run = std::process::Command::new(env!("CARGO_BIN_EXE_redeliver"))
                .args(["--config", "/nowhere/redeliver.toml"])
                .args(&words[1..])
                .current_dir(&folder)
                .stdin(std::process::Stdio::null())
                .output()
                .expect("the program runs");
            let said = String::from_utf8_lossy(&run.stderr).into_owned();
            // How clap ends what it says about arguments; that there is no such file comes after them.
            let refused = said.contains("For more information, try '--help'");
            // Prose may name a command without what it needs.
            let named = page(&text).codes.contains(&line) && said.contains("required arguments were not provided");
            assert!(!refused || named, "{}: {line}\n{said}", path.display());
            seen += 1;
        }
    }
    assert!(seen > 60, "{seen} commands");
}

/// The anchor that GitHub makes of a heading.
fn anchor(title: &str) -> String {
    let title = title.trim().to_lowercase();
    title.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c)).collect::<String>().replace(' ', "-")
}

#[test]
fn every_link_of_every_page_leads_to_a_file_and_a_heading() {
    for (path, text) in pages() {
        let folder = path.parent().expect("a folder");
        for link in page(&text).links.iter().filter(|link| !link.starts_with("http")) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { path.clone() } else { folder.join(file) };
            assert!(target.exists(), "{} links to {link}, which is not there", path.display());
            if !heading.is_empty() {
                let titles = std::fs::read_to_string(&target).expect("a page");
                let titles = titles.lines().filter(|line| line.starts_with('#'));
                let found = titles.map(|line| anchor(line.trim_start_matches('#'))).any(|title| title == heading);
                assert!(found, "{} links to {link}: no such heading", path.display());
            }
        }
    }
}

/// The sections of the operations guide: anchor → text.
fn sections() -> BTreeMap<String, String> {
    let mut sections: BTreeMap<String, String> = BTreeMap::new();
    let mut now = String::new();
    for line in OPERATIONS.lines() {
        if line.starts_with("## ") || line.starts_with("### ") {
            now = anchor(line.trim_start_matches('#'));
        }
        sections.entry(now.clone()).or_default().push_str(line);
    }
    sections
}

#[test]
fn every_alert_of_prometheus_and_of_the_webhooks_has_a_page_that_says_what_to_do() {
    let sections = sections();
    let says_what_to_do = |anchor: &str| {
        let section = sections.get(anchor).unwrap_or_else(|| panic!("docs/operations.md has no section {anchor:?}"));
        assert!(section.len() > 200 && section.contains('`'), "{anchor}: a page says what to look at and what to run");
    };
    let rules = include_str!("../deploy/prometheus/rules.yml");
    let runbooks: Vec<&str> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("runbook: docs/operations.md#")).collect();
    assert_eq!(runbooks.len(), rules.matches("- alert:").count(), "every rule names its page");
    for page in runbooks {
        says_what_to_do(page);
    }
    // | `alert` | when | told again after | [page](#anchor) |
    let told = OPERATIONS.lines().filter_map(|line| line.strip_prefix("| `"));
    let mut alerts = BTreeSet::new();
    for row in told {
        let Some((name, rest)) = row.split_once('`') else { continue };
        let Some((_, link)) = rest.split_once("](#") else { continue };
        says_what_to_do(link.split(')').next().expect("a link ends"));
        alerts.insert(name);
    }
    // The names that the program sends, from the enum that it tells them by.
    let source = include_str!("../src/telemetry/alert/mod.rs");
    let names = source.lines().filter_map(|line| line.split_once("=> \"")).filter_map(|(_, rest)| rest.split_once('"'));
    let names: BTreeSet<&str> = names.map(|(name, _)| name).filter(|name| name.contains('_')).collect();
    assert!(names.len() >= 9, "{names:?}");
    assert_eq!(names, alerts, "alerts of the program, and of the table");
}

#[test]
fn every_alert_is_tested_to_fire_and_to_clear() {
    let rules = include_str!("../deploy/prometheus/rules.yml");
    let tests = include_str!("../deploy/prometheus/rules_test.yml");
    for alert in rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        let cases: Vec<&str> =
            tests.split("alertname: ").skip(1).filter(|case| case.lines().next() == Some(alert)).collect();
        let quiet = |case: &&str| case.lines().nth(1).is_some_and(|line| line.trim() == "exp_alerts: []");
        let fired = cases.iter().position(|case| !quiet(case));
        let fired = fired.unwrap_or_else(|| panic!("{alert} is never tested to fire"));
        assert!(cases[fired..].iter().any(quiet), "{alert} is never tested to clear");
    }
}

#[test]
fn the_figures_of_the_benchmarks_are_what_was_measured() {
    let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_redeliver"));
    let arguments = ["bench", "--render", "benches/figures.json"];
    let output = program.args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = include_str!("../docs/benchmarks.md");
    let (_, rest) = page.split_once("<!-- figures -->").expect("its beginning");
    let (figures, _) = rest.split_once("<!-- end of figures -->").expect("its end");
    assert_eq!(
        figures.trim(),
        String::from_utf8_lossy(&output.stdout).trim(),
        "write what it prints between the marks"
    );
}
