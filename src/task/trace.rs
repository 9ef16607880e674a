//! Where a task comes from in somebody's distributed trace, by W3C Trace Context.
//!
//! Kept with the task and sent on with every attempt. What does not follow the recommendation is as good as not there: a
//! trace is never a reason to refuse a task.

/// The longest `tracestate` that is kept; the recommendation asks for no more.
const LONGEST_STATE: usize = 512;
/// The most members of a `tracestate`.
const MOST_MEMBERS: usize = 32;
/// `00-` trace id `-` parent id `-` flags.
const LENGTH: usize = 55;

/// The context of the span that asked for a task.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TraceContext {
    /// `00-<32 hex>-<16 hex>-<2 hex>`, lower case.
    traceparent: String,
    /// What tracing systems keep beside it, as it came.
    tracestate: Option<String>,
}

impl TraceContext {
    /// Reads the two headers; `None` when `traceparent` is none. A `tracestate` that is none is left away by itself.
    ///
    /// A later version than 00 is read as far as 00 goes and written as 00, as the recommendation says.
    pub fn read(traceparent: &str, tracestate: Option<&str>) -> Option<TraceContext> {
        let fields = traceparent.get(..LENGTH)?;
        let mut parts = fields.split('-');
        let (version, trace, parent, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let is_hex = |text: &str, length: usize| {
            text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        let is_id = |text: &str, length| is_hex(text, length) && text.bytes().any(|byte| byte != b'0');
        let well_formed = is_hex(version, 2)
            && version != "ff"
            && is_id(trace, 32)
            && is_id(parent, 16)
            && is_hex(flags, 2)
            && parts.next().is_none();
        let rest = traceparent.get(LENGTH..)?;
        if !well_formed || !(rest.is_empty() || version != "00" && rest.starts_with('-')) {
            return None;
        }
        let traceparent = if version == "00" {
            fields.to_owned()
        } else {
            // Of the flags only "sampled" means in every version what it means in ours.
            let sampled = u8::from_str_radix(flags, 16).ok()? & 1;
            format!("00-{trace}-{parent}-{sampled:02x}")
        };
        Some(TraceContext { traceparent, tracestate: tracestate.filter(|state| is_state(state)).map(str::to_owned) })
    }

    /// The `traceparent` header.
    pub fn traceparent(&self) -> &str {
        &self.traceparent
    }

    /// The `tracestate` header.
    pub fn tracestate(&self) -> Option<&str> {
        self.tracestate.as_deref()
    }
}

/// Whether it can be sent on as it is: short enough, printable, members with a name and a value.
fn is_state(text: &str) -> bool {
    let members: Vec<&str> = text.split(',').map(str::trim).filter(|member| !member.is_empty()).collect();
    let is_member =
        |member: &&str| member.split_once('=').is_some_and(|(key, value)| !key.is_empty() && !value.is_empty());
    text.len() <= LONGEST_STATE
        && text.bytes().all(|byte| (0x20..0x7f).contains(&byte))
        && (1..=MOST_MEMBERS).contains(&members.len())
        && members.iter().all(is_member)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn parent(text: &str) -> Option<String> {
        TraceContext::read(text, None).map(|context| context.traceparent)
    }

    #[test]
    fn a_context_is_kept_as_it_came() {
        let context = TraceContext::read(PARENT, Some("congo=t61rcWkgMzE,rojo=00f067aa0ba902b7")).unwrap();
        assert_eq!(context.traceparent(), PARENT);
        assert_eq!(context.tracestate(), Some("congo=t61rcWkgMzE,rojo=00f067aa0ba902b7"));
    }

    #[test]
    fn what_is_no_traceparent_is_as_good_as_not_there() {
        let hostile = [
            "",
            "00",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01more",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\nX-Evil: 1",
            "00_0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331_01",
            "00-0af7651916cd43dd8448eb211c8031üc-b7ad6b7169203331-01",
            "0-00af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ];
        for text in hostile {
            assert_eq!(parent(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_later_version_is_written_as_ours() {
        let later = "42-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff-what-the-future-brings";
        assert_eq!(parent(later).as_deref(), Some(PARENT));
    }

    #[test]
    fn a_tracestate_that_cannot_be_sent_on_is_left_away_alone() {
        let (long, many) = (format!("a={}", "x".repeat(600)), "a=1,".repeat(33));
        for state in ["", " ", "nonsense", "a=1\r\nX-Evil: 1", "a=ü", &long, &many] {
            let context = TraceContext::read(PARENT, Some(state)).unwrap();
            assert_eq!((context.traceparent(), context.tracestate()), (PARENT, None), "{state:?}");
        }
    }
}
