//! Who changed what, and why. It only grows.

use maud::{Markup, html};

use crate::console::link;
use crate::console::page::{Place, Ui, page};
use crate::console::parts::{cli, empty, field, heading, nothing, pager, panel};
use crate::console::query::Query;
use crate::console::show::{count, time};
use crate::console::text::said;
use crate::store::access::AuditRecord;

/// What the page shows.
#[derive(Debug, Clone, Default)]
pub(crate) struct AuditView {
    pub query: Query,
    pub records: Vec<AuditRecord>,
    pub next: Option<String>,
}

/// The page.
pub(crate) fn render(view: &AuditView, ui: &Ui) -> Markup {
    let l = ui.lang;
    let value = |name: &str| view.query.get(name).unwrap_or_default().to_owned();
    let next = view.next.as_deref().map(|cursor| link::to("/audit", view.query.with("cursor", cursor).pairs()));
    let first = view.query.get("cursor").map(|_| link::to("/audit", view.query.without("cursor").pairs()));
    let body = html! {
        (heading(l.audit(), html! { span.muted { (l.audit_hint()) } }))
        form.search method="get" action="/audit" role="search" {
            div.fields {
                (field(l.who(), html! { input type="text" name="who" value=(value("who")) data-search autocomplete="off"; }, ""))
                (field(l.action(), html! { input type="text" name="action" value=(value("action")) placeholder="dlq.discard" autocomplete="off"; }, ""))
                (field(l.target(), html! { input type="text" name="target" value=(value("target")) autocomplete="off"; }, ""))
                button.primary { (l.search()) }
            }
        }
        (panel("records", l.audit(), nothing(), first.is_none(), html! {
            @if view.records.is_empty() { (empty(l.nothing_here())) } @else {
                div.scroll { table.list {
                    thead { tr { th { (l.when()) } th { (l.who()) } th { (l.action()) } th.wide { (l.target()) } th.num { (l.count()) } th.wide { (l.reason_why()) } th { (l.door()) } } }
                    tbody {
                        @for record in &view.records {
                            @let entry = &record.entry;
                            tr {
                                td.when { (time(record.at, ui.now, l)) }
                                td { (said(&entry.who, 60)) @if let Some(role) = entry.role { " " span.muted { (role.as_str()) } } }
                                td { code { (entry.action) } }
                                td.wide { (said(&entry.target, 200)) }
                                td.num { @if let Some(n) = entry.count { (count(n)) } }
                                td.wide { (said(entry.reason.as_deref().unwrap_or("–"), 200)) }
                                td.muted { (entry.door.as_str()) @if let Some(origin) = &entry.origin { " " (said(origin, 60)) } }
                            }
                        }
                    }
                } }
            }
        }))
        (pager(first.as_deref(), next.as_deref(), l))
        (cli(&["redeliver", "audit", "list"], l))
    };
    page(ui, Place::Audit, l.audit(), &body)
}
