//! Makes what comes from the broker readable for lapin's parser, byte for byte in place.
//!
//! RabbitMQ hands on a producer's properties unseen. lapin's parser ends the whole connection over a short string that is no
//! UTF-8, and goes as deep as a header table is nested. One such message would end every session it is delivered to, and with it
//! the prefetch of every lane, until the delivery limit has moved them all to `.rejected`. So bytes that are no text become `?`,
//! and a table or array that is nested too deep or cannot be read becomes a long string of the same length.
//!
//! Headers that their producer could send in one frame and that are too long for one of ours (the broker does not split them)
//! are taken out: [`FRAME_MAX`] is smaller than a producer's usual one, and lapin ends the connection over a longer frame.

use std::ops::Range;

use tracing::debug;

const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
const HEARTBEAT: u8 = 8;
/// Type, channel (2), size (4).
const HEAD: usize = 7;
/// Head and end marker.
const OVERHEAD: usize = HEAD + 1;
/// Longer than any frame that is not a body; what claims to be more is left to lapin to refuse.
const LONGEST_HELD: usize = 16 * 1024 * 1024;
/// The longest frame we agree to, head and end marker included. lapin keeps 32 of them each way for each connection and
/// comes to touch them all, which with RabbitMQ's own 128 KiB is 16 MiB of memory a session. Above our own headers' cap of 16 KiB,
/// since headers stand in one frame, and above the 8,192 bytes that RabbitMQ 4.1 asks for at least.
pub(super) const FRAME_MAX: u32 = 32 * 1024;
/// Tables and arrays within each other. Nobody means more, and every level costs the parser stack.
const DEEPEST: usize = 16;

/// Bytes on their way from the broker. Bodies pass as they come; other frames are held until they are whole.
#[derive(Debug, Default)]
pub(super) struct Sieve {
    bytes: Vec<u8>,
    /// Up to here they were taken out.
    taken: usize,
    /// Up to here they may be.
    ready: usize,
    /// Of a body frame that has begun.
    body_left: usize,
    /// Something that is no AMQP frame came: from then on everything passes untouched.
    opaque: bool,
}

impl Sieve {
    /// Takes in what was read; `see` is shown every whole method frame and may end it all.
    pub(super) fn put<E>(&mut self, read: &[u8], mut see: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        self.bytes.drain(..self.taken);
        self.ready -= self.taken;
        self.taken = 0;
        self.bytes.extend_from_slice(read);
        loop {
            let rest = &mut self.bytes[self.ready..];
            if self.opaque {
                self.ready += rest.len();
                return Ok(());
            }
            if self.body_left > 0 {
                let passing = self.body_left.min(rest.len());
                self.ready += passing;
                self.body_left -= passing;
                if self.body_left > 0 {
                    return Ok(());
                }
                continue;
            }
            let Some(&[kind, _, _, a, b, c, d]) = rest.first_chunk::<HEAD>() else { return Ok(()) };
            let length = u32::from_be_bytes([a, b, c, d]) as usize + OVERHEAD;
            match kind {
                BODY => self.body_left = length,
                METHOD | HEADER | HEARTBEAT if length <= LONGEST_HELD => {
                    let Some(frame) = rest.get_mut(..length) else { return Ok(()) };
                    let payload = &mut frame[HEAD..length - 1];
                    let mut walk = Walk { bytes: payload, at: 0 };
                    let walked = match kind {
                        METHOD => walk.method(),
                        HEADER => walk.header(),
                        _ => Some(()),
                    };
                    if walked.is_none() {
                        debug!(kind, length, "a frame that cannot be walked to its end is left to lapin to judge");
                    }
                    if kind == METHOD {
                        see(frame)?;
                    }
                    if kind == HEADER && length > FRAME_MAX as usize {
                        self.pass_without_headers(length - OVERHEAD);
                    } else {
                        self.ready += length;
                    }
                }
                _ => self.opaque = true,
            }
        }
    }

    /// Lets the content header that comes next, of a payload of `length` bytes, pass without its headers. One in which they cannot
    /// be found passes as it is.
    fn pass_without_headers(&mut self, length: usize) {
        let at = self.ready + HEAD;
        let found = Walk { bytes: &mut self.bytes[at..at + length], at: 0 }.headers();
        let headers = found.unwrap_or_default();
        let left = length - headers.len();
        if let (false, Ok(size)) = (headers.is_empty(), u32::try_from(left)) {
            debug!(bytes = headers.len(), "headers that are too long for one frame of ours are left out");
            self.bytes[self.ready + 3..at].copy_from_slice(&size.to_be_bytes());
            self.bytes[at + headers.start - 4..at + headers.start].fill(0);
            self.bytes.drain(at + headers.start..at + headers.end);
        }
        self.ready += left + OVERHEAD;
    }

    /// Moves what may pass into `out`; how much it was.
    pub(super) fn take(&mut self, out: &mut [u8]) -> usize {
        let passing = &self.bytes[self.taken..self.ready];
        let length = passing.len().min(out.len());
        out[..length].copy_from_slice(&passing[..length]);
        self.taken += length;
        length
    }
}

/// Walks through a payload and mends what it passes. Ends with `None` where the bytes are not what they should be.
struct Walk<'b> {
    bytes: &'b mut [u8],
    at: usize,
}

impl Walk<'_> {
    /// A method, as far as it has text that somebody else chose.
    fn method(&mut self) -> Option<()> {
        match (self.u16()?, self.u16()?) {
            // connection.close, channel.close: reply code, reply text (the broker cuts it at 255 bytes, not characters)
            (10, 50) | (20, 40) => {
                self.skip(2)?;
                self.short()
            }
            // basic.return: reply code, reply text, exchange, routing key
            (60, 50) => {
                self.skip(2)?;
                self.short()?;
                self.short()?;
                self.short()
            }
            // basic.deliver: consumer tag, delivery tag, redelivered, exchange, routing key
            (60, 60) => {
                self.short()?;
                self.skip(9)?;
                self.short()?;
                self.short()
            }
            // basic.get-ok: delivery tag, redelivered, exchange, routing key
            (60, 71) => {
                self.skip(9)?;
                self.short()?;
                self.short()
            }
            _ => Some(()),
        }
    }

    /// A content header: class, weight, body size, flags, and the properties that the flags name, from the highest bit down.
    fn header(&mut self) -> Option<()> {
        self.skip(12)?;
        let flags = self.u16()?;
        for bit in (2..16).rev().filter(|bit| flags & (1 << bit) != 0) {
            match bit {
                13 => self.table(0)?,
                // delivery mode, priority
                12 | 11 => self.skip(1)?,
                // timestamp
                6 => self.skip(8)?,
                _ => self.short()?,
            }
        }
        Some(())
    }

    /// Where in a content header the entries of its headers stand, behind their length.
    fn headers(&mut self) -> Option<Range<usize>> {
        self.skip(12)?;
        let flags = self.u16()?;
        if flags & (1 << 13) == 0 {
            return None;
        }
        // content type, content encoding
        for _ in (14..16).filter(|bit| flags & (1 << bit) != 0) {
            self.short()?;
        }
        let length = self.u32()?;
        let start = self.at;
        self.skip(length)?;
        Some(start..self.at)
    }

    fn table(&mut self, depth: usize) -> Option<()> {
        let length = self.u32()?;
        let inside = self.bytes.get_mut(self.at..self.at.checked_add(length)?)?;
        self.at += length;
        let mut inside = Walk { bytes: inside, at: 0 };
        while inside.at < inside.bytes.len() {
            inside.short()?;
            inside.value(depth)?;
        }
        Some(())
    }

    fn array(&mut self, depth: usize) -> Option<()> {
        let length = self.u32()?;
        let inside = self.bytes.get_mut(self.at..self.at.checked_add(length)?)?;
        self.at += length;
        let mut inside = Walk { bytes: inside, at: 0 };
        while inside.at < inside.bytes.len() {
            inside.value(depth)?;
        }
        Some(())
    }

    /// A value with its type.
    fn value(&mut self, depth: usize) -> Option<()> {
        let kind_at = self.at;
        match self.u8()? {
            b't' | b'b' | b'B' => self.skip(1),
            b's' | b'u' | b'U' => self.skip(2),
            b'i' | b'I' | b'f' => self.skip(4),
            b'D' => self.skip(5),
            b'l' | b'L' | b'd' | b'T' => self.skip(8),
            b'V' => Some(()),
            b'S' | b'x' => {
                let length = self.u32()?;
                self.skip(length)
            }
            kind @ (b'F' | b'A') => {
                let length_at = self.at;
                let readable = depth < DEEPEST
                    && if kind == b'F' { self.table(depth + 1) } else { self.array(depth + 1) }.is_some();
                if !readable {
                    self.at = length_at;
                    let length = self.u32()?;
                    self.skip(length)?;
                    *self.bytes.get_mut(kind_at)? = b'S';
                }
                Some(())
            }
            _ => None,
        }
    }

    fn short(&mut self) -> Option<()> {
        let length = usize::from(self.u8()?);
        let text = self.bytes.get_mut(self.at..self.at + length)?;
        self.at += length;
        mend(text);
        Some(())
    }

    fn skip(&mut self, length: usize) -> Option<()> {
        self.at = self.at.checked_add(length).filter(|at| *at <= self.bytes.len())?;
        Some(())
    }

    fn u8(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes([self.u8()?, self.u8()?]))
    }

    fn u32(&mut self) -> Option<usize> {
        usize::try_from(u32::from_be_bytes([self.u8()?, self.u8()?, self.u8()?, self.u8()?])).ok()
    }
}

/// Replaces every byte that belongs to no character.
fn mend(text: &mut [u8]) {
    let mut from = 0;
    while let Err(error) = std::str::from_utf8(&text[from..]) {
        let bad = from + error.valid_up_to();
        // Without a length the text ends in the middle of a character.
        let end = error.error_len().map_or(text.len(), |length| bad + length);
        text[bad..end].fill(b'?');
        from = end;
    }
}

#[cfg(test)]
mod tests {
    use amq_protocol::frame::{AMQPContentHeader, AMQPFrame, gen_frame, parse_frame};
    use lapin::BasicProperties;
    use lapin::protocol::{AMQPClass, basic};
    use lapin::types::{AMQPValue, FieldArray, FieldTable};
    use proptest::prelude::*;

    use super::*;

    fn written(frame: &AMQPFrame) -> Vec<u8> {
        gen_frame(frame)(Vec::new().into()).expect("a frame").into_inner().0
    }

    fn sieved(bytes: &[u8], step: usize) -> Vec<u8> {
        let mut sieve = Sieve::default();
        let mut passed = Vec::new();
        let mut out = [0; 7];
        for read in bytes.chunks(step.max(1)) {
            sieve.put(read, |_| Ok::<(), ()>(())).expect("nobody objects");
            loop {
                let length = sieve.take(&mut out);
                if length == 0 {
                    break;
                }
                passed.extend_from_slice(&out[..length]);
            }
        }
        passed
    }

    fn header(properties: BasicProperties) -> AMQPFrame {
        AMQPFrame::Header(1, AMQPContentHeader { class_id: 60, body_size: 3, properties })
    }

    fn nested(depth: usize) -> FieldTable {
        let mut table = FieldTable::default();
        table.insert("MARK".into(), AMQPValue::LongString("leaf".into()));
        for level in 0..depth {
            let mut outer = FieldTable::default();
            let inner = if level % 2 == 0 {
                AMQPValue::FieldTable(table)
            } else {
                AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::Void, AMQPValue::FieldTable(table)]))
            };
            outer.insert("MARK".into(), inner);
            table = outer;
        }
        table
    }

    fn spoil(bytes: &mut [u8]) {
        for at in 0..bytes.len().saturating_sub(3) {
            if &bytes[at..at + 4] == b"MARK" {
                bytes[at..at + 4].copy_from_slice(b"\xff\xfe\xc3(");
            }
        }
    }

    #[test]
    fn properties_routing_keys_and_header_names_that_are_no_text_can_be_read() {
        let properties = BasicProperties::default()
            .with_content_type("MARK".into())
            .with_headers(nested(3))
            .with_delivery_mode(2)
            .with_priority(1)
            .with_correlation_id("MARK".into())
            .with_expiration("MARK".into())
            .with_message_id("MARK".into())
            .with_timestamp(7)
            .with_type("MARK".into())
            .with_app_id("fine".into());
        let deliver = AMQPFrame::Method(
            1,
            AMQPClass::Basic(basic::AMQPMethod::Deliver(basic::Deliver {
                consumer_tag: "MARK".into(),
                delivery_tag: 7,
                redelivered: true,
                exchange: "MARK".into(),
                routing_key: "MARK".into(),
            })),
        );
        let mut bytes = written(&deliver);
        let first = bytes.len();
        bytes.extend(written(&header(properties)));
        bytes.extend(written(&AMQPFrame::Body(1, b"MARK".to_vec())));
        spoil(&mut bytes);
        assert!(parse_frame(&bytes[first..]).is_err(), "lapin can read it by itself");

        for step in [1, 3, 10_000] {
            let passed = sieved(&bytes, step);
            assert_eq!(passed.len(), bytes.len());
            let (rest, deliver) = parse_frame(passed.as_slice()).expect("a delivery");
            assert!(matches!(deliver, AMQPFrame::Method(1, AMQPClass::Basic(basic::AMQPMethod::Deliver(deliver)))
                if deliver.routing_key.as_str() == "???(" && deliver.redelivered));
            let (rest, header) = parse_frame(rest).expect("a header");
            let AMQPFrame::Header(1, header) = header else { panic!("{header:?}") };
            assert_eq!(header.properties.message_id().as_ref().map(|id| id.as_str()), Some("???("));
            assert_eq!(header.properties.timestamp(), &Some(7));
            assert_eq!(header.properties.app_id().as_ref().map(|id| id.as_str()), Some("fine"));
            let (_, body) = parse_frame(rest).expect("a body");
            assert!(
                matches!(body, AMQPFrame::Body(1, body) if body == b"\xff\xfe\xc3("),
                "bodies are nobody's business"
            );
        }
    }

    #[test]
    fn what_is_text_passes_unchanged() {
        let properties = BasicProperties::default()
            .with_message_id("Größe 中文".into())
            .with_headers(nested(DEEPEST / 2))
            .with_type("redeliver.wake-up".into());
        let mut bytes = written(&header(properties));
        bytes.extend(written(&AMQPFrame::Heartbeat));
        assert_eq!(sieved(&bytes, 5), bytes);
    }

    #[test]
    fn headers_that_fill_more_than_one_frame_of_ours_are_left_out_and_the_rest_is_kept() {
        let most = FRAME_MAX as usize - 60;
        for (length, kept) in [(most, true), (FRAME_MAX as usize, false), (120_000, false)] {
            let mut headers = FieldTable::default();
            headers.insert("long".into(), AMQPValue::LongString("x".repeat(length).into()));
            let properties = BasicProperties::default()
                .with_content_type("text/plain".into())
                .with_headers(headers)
                .with_message_id("m-1".into());
            let mut bytes = written(&header(properties));
            bytes.extend(written(&AMQPFrame::Body(1, b"abc".to_vec())));
            let passed = sieved(&bytes, 1_000);
            let (rest, frame) = parse_frame(passed.as_slice()).expect("a header");
            assert!(passed.len() - rest.len() <= FRAME_MAX as usize, "lapin ends the connection over it");
            let AMQPFrame::Header(1, told) = frame else { panic!("{frame:?}") };
            assert_eq!(told.properties.message_id().as_ref().map(|id| id.as_str()), Some("m-1"));
            assert_eq!(told.properties.content_type().as_ref().map(|text| text.as_str()), Some("text/plain"));
            let headers = told.properties.headers().as_ref().expect("the field stays");
            assert_eq!(headers.inner().len(), usize::from(kept), "{length}");
            let (rest, body) = parse_frame(rest).expect("a body");
            assert!(matches!(body, AMQPFrame::Body(1, body) if body == b"abc") && rest.is_empty());
        }
    }

    #[test]
    fn tables_nested_deeper_than_anybody_means_become_bytes() {
        let mut inside = Vec::new();
        for _ in 0..5_000 {
            let mut table = vec![1, b'k', b'F'];
            table.extend((u32::try_from(inside.len()).expect("short")).to_be_bytes());
            table.extend(inside);
            inside = table;
        }
        let mut payload = vec![0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x20, 0];
        payload.extend((u32::try_from(inside.len()).expect("short")).to_be_bytes());
        payload.extend(inside);
        let mut bytes = vec![HEADER, 0, 1];
        bytes.extend((u32::try_from(payload.len()).expect("short")).to_be_bytes());
        bytes.extend(payload);
        bytes.push(0xCE);
        let passed = sieved(&bytes, 1_000);
        let (_, frame) = parse_frame(passed.as_slice()).expect("a header");
        assert!(matches!(frame, AMQPFrame::Header(1, _)));
    }

    #[test]
    fn whoever_sees_a_method_frame_may_end_it() {
        let bytes = written(&AMQPFrame::Method(0, AMQPClass::Basic(basic::AMQPMethod::QosOk(basic::QosOk {}))));
        let mut seen = 0;
        let ended = Sieve::default().put(&bytes, |frame| {
            seen = frame.len();
            Err("enough")
        });
        assert_eq!((ended, seen), (Err("enough"), bytes.len()));
    }

    proptest! {
        #[test]
        fn any_bytes_pass_in_full_length_whatever_they_are(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            // Heads that look like frames are rare in noise, so half of the runs get one.
            let mut framed = vec![HEADER, 0, 1];
            framed.extend(u32::try_from(bytes.len()).expect("short").to_be_bytes());
            framed.extend(&bytes);
            framed.push(0xCE);
            prop_assert_eq!(sieved(&framed, 11).len(), framed.len());
            let passed = sieved(&bytes, 11);
            prop_assert!(bytes.starts_with(&passed[..passed.len().min(1)]) && passed.len() <= bytes.len());
        }
    }
}
