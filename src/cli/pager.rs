//! Long lists, printed page by page: `--all` over a million tasks holds one page in memory (a table needs all of them to know its
//! widths).

use redeliver::store::{Filter, Store};
use redeliver::task::Task;

use super::exit::{self, Exit};
use super::filter::PageArgs;
use super::output::{Entry, Format, Listing, Printer};

/// Tasks read at once; each may hold a payload of up to `worker.max_body`.
const PAGE: usize = 200;

/// Prints one page, or with `--all` every page.
///
/// # Errors
/// When the store does not answer, does not know the cursor, or stdout cannot be written.
pub async fn print(
    printer: &Printer,
    store: &dyn Store,
    filter: &Filter,
    page: &PageArgs,
    columns: &[&'static str],
    entry: impl Fn(&Task) -> Entry,
) -> anyhow::Result<()> {
    if !page.all {
        let limit = usize::try_from(page.limit).unwrap_or(PAGE);
        let found = store.list(filter, page.cursor.as_deref(), limit).await.map_err(|error| match &page.cursor {
            Some(cursor) if exit::of_store(&error) == Exit::Failed => {
                exit::error(Exit::Usage, format!("--cursor {cursor}: {error}"))
            }
            _ => error.into(),
        })?;
        let mut listing = Listing::new(columns);
        found.items.iter().for_each(|task| listing.push(entry(task)));
        listing.next = found.next;
        return Ok(printer.list(&listing)?);
    }
    let mut listing = Listing::new(columns);
    let mut cursor: Option<String> = None;
    let mut is_first = true;
    loop {
        let found = store.list(filter, cursor.as_deref(), PAGE).await?;
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
