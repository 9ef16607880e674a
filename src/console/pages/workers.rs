//! Who works, by which rules, and how the queues stand.

use maud::{Markup, html};

use crate::console::page::{Place, Ui, page};
use crate::console::pages::overview::Lane;
use crate::console::parts::{badge, cli, empty, heading, nothing, panel};
use crate::console::show::{count, time, time_or_dash};
use crate::console::text::{line, said};
use crate::store::Node;
use crate::task::Millis;

/// A worker that has not said so for this long is probably gone.
const SILENT_MS: Millis = 90_000;

/// What the page shows.
#[derive(Debug, Clone, Default)]
pub(crate) struct WorkersView {
    pub nodes: Vec<Node>,
    /// What this server's rules are.
    pub digest: String,
    /// Running attempts by worker.
    pub running: std::collections::BTreeMap<String, i64>,
    pub lanes: Vec<Lane>,
    /// Present, wanted and strange copies, by queue.
    pub dlqs: Vec<(String, i64, i64, i64)>,
    /// Why the broker's half is missing.
    pub broker_problem: Option<String>,
}

/// The page.
pub(crate) fn render(view: &WorkersView, ui: &Ui) -> Markup {
    let l = ui.lang;
    let body = html! {
        (heading(l.workers(), nothing()))
        (panel("nodes", l.workers(), nothing(), true, nodes(view, ui)))
        (panel("queues", l.lanes(), nothing(), true, html! {
            @if let Some(problem) = &view.broker_problem { p.notice.bad { (l.broker_silent()) " " (said(problem, 200)) } }
            div.scroll { table.list {
                thead { tr { th { (l.queue()) } th { } th.num { (l.in_store()) } th.num { (l.in_broker()) } th.num { (l.consumers()) } th { (l.oldest()) } th { } } }
                tbody {
                    @for lane in &view.lanes {
                        tr {
                            td { (said(&lane.queue, 60)) }
                            td.muted { (if lane.is_retries { l.retries() } else { l.new_ones() }) }
                            td.num { (count(lane.in_store)) }
                            td.num { (lane.ready.map_or_else(|| "–".to_owned(), |n| n.to_string())) }
                            td.num { (lane.consumers.map_or_else(|| "–".to_owned(), |n| n.to_string())) }
                            td { (time_or_dash(lane.oldest, ui.now, l)) }
                            td { @if let Some(reason) = &lane.paused { (badge("warn", l.paused())) " " (said(reason, 100)) } }
                        }
                    }
                }
            } }
        }))
        (panel("dlqs", l.dlq_mirror(), nothing(), true, html! {
            div.scroll { table.list {
                thead { tr { th.wide { (l.queue()) } th.num { (l.copies_present()) } th.num { (l.copies_wanted()) } th.num { (l.strangers()) } } }
                tbody { @for (queue, present, wanted, strangers) in &view.dlqs { tr {
                    td.wide { (said(queue, 60)) } td.num { (count(*present)) } td.num { (count(*wanted)) } td.num { (count(*strangers)) }
                } } }
            } }
        }))
        (cli(&["redeliver", "queue", "list"], l))
    };
    page(ui, Place::Workers, l.workers(), &body)
}

fn nodes(view: &WorkersView, ui: &Ui) -> Markup {
    let l = ui.lang;
    if view.nodes.is_empty() {
        return empty(l.no_workers());
    }
    html! {
        div.scroll { table.list {
            thead { tr { th.wide { (l.worker()) } th { (l.last_seen()) } th.num { (l.running()) } th { (l.rules()) } } }
            tbody {
                @for node in &view.nodes {
                    tr {
                        td.wide { (said(&node.worker, 120)) }
                        td.when {
                            (time(node.seen_at, ui.now, l))
                            @if ui.now.saturating_sub(node.seen_at) > SILENT_MS { " " (badge("warn", l.silent())) }
                        }
                        td.num { (count(view.running.get(&node.worker).copied().unwrap_or(0))) }
                        td {
                            code title=(line(&node.hash, 80)) { (line(node.hash.get(..12).unwrap_or(&node.hash), 12)) }
                            @if let Some(version) = node.version { " " (l.version()) " " (version) }
                            @if !view.digest.is_empty() && node.hash != view.digest { " " (badge("warn", l.other_rules())) }
                        }
                    }
                }
            }
        } }
    }
}
