//! One text for two databases.
//!
//! Statements are written as SQLite reads them, with `?1` or `?` for arguments and a few words in braces where the two differ.
//! [`Dialect::render`] makes of it what the database reads. All of it is program text, never input.
//!
//! | written | means |
//! |---|---|
//! | `{each:?1}` | the texts of a JSON array, as a column `value` |
//! | `{numbers:?1}` | the same, of numbers |
//! | `{listed:?1}` | something to select from with `value` (text, or number in SQLite) and `key`, its place from 0 |
//! | `{contains:a,b}` | text a contains text b, ASCII case ignored |
//! | `{label:a,b}` | the value, as text, of name b in the JSON object a |
//! | `INDEXED BY name`, `NOT INDEXED` | which index SQLite is to walk; PostgreSQL is kept from reading whole tables by its settings |

/// Whose SQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    Sqlite,
    #[cfg(feature = "postgres")]
    Postgres,
}

impl Dialect {
    /// The statement as the database reads it.
    pub(crate) fn render(self, sql: &str) -> String {
        let mut out = String::with_capacity(sql.len() + 64);
        let mut asked = 0;
        self.render_into(sql, &mut out, &mut asked);
        out
    }

    fn render_into(self, sql: &str, out: &mut String, asked: &mut usize) {
        let mut rest = sql;
        while let Some(at) = rest.find(['?', '{', 'I', 'N']) {
            let (before, from) = rest.split_at(at);
            out.push_str(before);
            rest = if let Some(after) = from.strip_prefix('?') {
                self.argument(after, out, asked)
            } else if let Some((word, arguments, after)) = from.strip_prefix('{').and_then(word_in_braces) {
                self.word(word, arguments, out, asked);
                after
            } else if let Some(after) = from.strip_prefix("INDEXED BY ").filter(|_| !self.is_sqlite()) {
                after.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '_')
            } else if let Some(after) = from.strip_prefix("NOT INDEXED").filter(|_| !self.is_sqlite()) {
                after
            } else {
                out.push_str(&from[..1]);
                &from[1..]
            };
        }
        out.push_str(rest);
    }

    /// Whether the numbers that the database gives itself come from a sequence, which does not look at the rows.
    pub(crate) fn numbers_by_sequence(self) -> bool {
        !self.is_sqlite()
    }

    fn is_sqlite(self) -> bool {
        self == Dialect::Sqlite
    }

    /// An argument, with its number if it has one.
    fn argument<'s>(self, after: &'s str, out: &mut String, asked: &mut usize) -> &'s str {
        if self.is_sqlite() {
            out.push('?');
            return after;
        }
        out.push('$');
        if !after.starts_with(|c: char| c.is_ascii_digit()) {
            *asked += 1;
            out.push_str(&asked.to_string());
        }
        after
    }

    fn word(self, word: &str, arguments: &str, out: &mut String, asked: &mut usize) {
        let (a, b) = arguments.split_once(',').unwrap_or((arguments, ""));
        let mut parts = |texts: &[&str]| texts.iter().for_each(|text| self.render_into(text, out, asked));
        match (self, word) {
            (Dialect::Sqlite, "each" | "numbers") => parts(&["SELECT value FROM json_each(", a, ")"]),
            (Dialect::Sqlite, "listed") => parts(&["json_each(", a, ")"]),
            (Dialect::Sqlite, "contains") => parts(&["instr(lower(", a, "), lower(", b, ")) > 0"]),
            (Dialect::Sqlite, _) => {
                parts(&[
                    "(SELECT CAST(label.value AS TEXT) FROM json_each(",
                    a,
                    ") AS label WHERE label.key = ",
                    b,
                    " LIMIT 1)",
                ]);
            }
            #[cfg(feature = "postgres")]
            (Dialect::Postgres, "each") => {
                parts(&["SELECT value FROM json_array_elements_text(", a, "::json) AS each(value)"])
            }
            #[cfg(feature = "postgres")]
            (Dialect::Postgres, "numbers") => {
                parts(&["SELECT value::bigint FROM json_array_elements_text(", a, "::json) AS each(value)"]);
            }
            #[cfg(feature = "postgres")]
            (Dialect::Postgres, "listed") => parts(&[
                "(SELECT value, place - 1 AS key FROM json_array_elements_text(",
                a,
                "::json) WITH ORDINALITY AS each(value, place))",
            ]),
            #[cfg(feature = "postgres")]
            (Dialect::Postgres, "contains") => {
                parts(&["strpos(lower(", a, " COLLATE \"C\"), lower(", b, " COLLATE \"C\")) > 0"]);
            }
            #[cfg(feature = "postgres")]
            (Dialect::Postgres, _) => parts(&["(", a, "::json ->> ", b, ")"]),
        }
    }
}

/// `each:?1} AND …` as word, arguments and what follows; `None` for any other brace, such as an empty JSON object.
fn word_in_braces(text: &str) -> Option<(&str, &str, &str)> {
    const WORDS: [&str; 5] = ["each", "numbers", "listed", "contains", "label"];
    let (inside, after) = text.split_once('}')?;
    let (word, arguments) = inside.split_once(':')?;
    WORDS.contains(&word).then_some((word, arguments, after))
}

#[cfg(test)]
mod tests {
    use super::Dialect;

    const NEUTRAL: &str =
        "SELECT '{}' FROM tasks INDEXED BY tasks_id WHERE id IN ({each:?}) AND NOT held AND {label:labels,?} = ?";

    #[test]
    fn sqlite_reads_what_was_written() {
        assert_eq!(
            Dialect::Sqlite.render(NEUTRAL),
            "SELECT '{}' FROM tasks INDEXED BY tasks_id WHERE id IN (SELECT value FROM json_each(?)) AND NOT held AND \
             (SELECT CAST(label.value AS TEXT) FROM json_each(labels) AS label WHERE label.key = ? LIMIT 1) = ?"
        );
    }

    #[cfg(feature = "postgres")]
    #[test]
    fn postgresql_gets_numbered_arguments_and_no_word_on_indexes() {
        assert_eq!(
            Dialect::Postgres.render(NEUTRAL),
            "SELECT '{}' FROM tasks  WHERE id IN (SELECT value FROM json_array_elements_text($1::json) AS each(value)) \
             AND NOT held AND (labels::json ->> $2) = $3"
        );
        assert_eq!(
            Dialect::Postgres.render("SELECT ?2, ?1 FROM {listed:?3} AS l"),
            "SELECT $2, $1 FROM (SELECT value, place - 1 AS key \
             FROM json_array_elements_text($3::json) WITH ORDINALITY AS each(value, place)) AS l"
        );
    }
}
