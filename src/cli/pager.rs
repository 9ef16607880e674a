//! Long lists, printed page by page: `--all` over a million tasks holds one page in memory (a table needs all of them to know its
//! widths).

use redeliver::desk::filter::FilterText;
use redeliver::desk::task::TaskDocument;
use redeliver::desk::{List, Mask};
use redeliver::store::{Filter, Page};
use serde::Serialize;

use super::context::{Context, Door};
use super::filter::{FilterArgs, PageArgs, now};
use super::output::{Entry, Format, Listing};

/// Tasks read at once; each may hold a payload of up to `worker.max_body`.
const PAGE: usize = 200;
/// The most that a server gives at once.
const MOST: usize = redeliver::api::MOST_ITEMS;

/// Which list.
pub enum Which {
    /// Every task.
    Tasks,
    /// Dead ones.
    DeadLetters,
}

/// Prints one page, or with `--all` every page.
///
/// # Errors
/// When store or server do not answer, do not know the cursor, or stdout cannot be written.
pub async fn print(
    context: &Context,
    which: Which,
    filter: &FilterArgs,
    page: &PageArgs,
    columns: &[&'static str],
    entry: impl Fn(&TaskDocument) -> Entry,
) -> anyhow::Result<()> {
    let printer = &context.printer;
    let source = Source::open(context, which, filter).await?;
    if !page.all {
        let limit = usize::try_from(page.limit).unwrap_or(PAGE);
        let found = source.page(context, page.cursor.as_deref(), limit).await?;
        let mut listing = Listing::new(columns);
        found.items.iter().for_each(|task| listing.push(entry(task)));
        listing.next = found.next;
        return Ok(printer.list(&listing)?);
    }
    let mut listing = Listing::new(columns);
    let mut cursor: Option<String> = None;
    let mut is_first = true;
    loop {
        let found = source.page(context, cursor.as_deref(), PAGE).await?;
        found.items.iter().for_each(|task| listing.push(entry(task)));
        cursor = found.next;
        let is_last = cursor.is_none();
        if printer.format() == Format::Table {
            if is_last {
                return Ok(printer.list(&listing)?);
            }
            continue;
        }
        printer.part(&listing, is_first, is_last)?;
        if is_last {
            return Ok(());
        }
        is_first = false;
        listing = Listing::new(columns);
    }
}

/// Where pages come from.
struct Source<'c> {
    door: Door<'c>,
    which: Which,
    filter: Filter,
    text: FilterText,
}

impl<'c> Source<'c> {
    async fn open(context: &'c Context, which: Which, args: &FilterArgs) -> anyhow::Result<Source<'c>> {
        let door = context.door().await?;
        let now = match &door {
            Door::Store(store) => store.now(),
            Door::Api(_) => now(),
        };
        let filter = match which {
            Which::Tasks => args.to_filter(&[], now)?,
            Which::DeadLetters => args.to_dead_filter(&[], now)?,
        };
        // Ids from stdin can be read once only.
        let text = FilterText::of(&filter);
        Ok(Source { door, which, filter, text })
    }

    async fn page(&self, context: &Context, cursor: Option<&str>, limit: usize) -> anyhow::Result<List<TaskDocument>> {
        match &self.door {
            Door::Store(store) => {
                let page: Page<_> = context.bound("the store", store.list(&self.filter, cursor, limit)).await??;
                let items = page.items.iter().map(|task| TaskDocument::of(task, Mask::none())).collect();
                Ok(List { items, next: page.next })
            }
            Door::Api(remote) => {
                let path = match self.which {
                    Which::Tasks => "tasks",
                    Which::DeadLetters => "dead-letters",
                };
                let query = Query { filter: &self.text, limit: limit.min(MOST), cursor };
                context.bound("the server", remote.get(&[path], &query)).await?
            }
        }
    }
}

/// A filter and a page as a query.
#[derive(Serialize)]
struct Query<'q> {
    #[serde(flatten)]
    filter: &'q FilterText,
    limit: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<&'q str>,
}
