//! A picture to look at, made here: what a browser robot would have seen.

/// A page with a header, some lines and a grey button, as a PNG of eight colours.
pub fn screen(width: u32, height: u32) -> Vec<u8> {
    const COLOURS: [[u8; 3]; 6] =
        [[255, 255, 255], [32, 60, 92], [206, 214, 224], [150, 160, 172], [226, 94, 80], [240, 243, 247]];
    let within = |v: u32, from: u32, to: u32| v >= from && v < to;
    let colour = |x: u32, y: u32| -> u8 {
        let row = y % 28;
        if y < 44 {
            if within(x, 20, 130) && within(y, 14, 30) { 0 } else { 1 }
        } else if within(x, 0, 150) {
            if within(row, 10, 18) && within(x, 20, 120 - (y / 28) % 3 * 20) { 3 } else { 5 }
        } else if within(y, 286, 322) && within(x, 480, 610) {
            if within(y, 299, 309) && within(x, 515, 575) { 0 } else { 3 }
        } else if within(y, 236, 262) && within(x, 180, 610) {
            if within(y, 245, 253) && within(x, 194, 430) { 0 } else { 4 }
        } else if within(row, 10, 18) && within(x, 180, 600 - (y / 28 * 37) % 160) && y < 230 {
            2
        } else {
            0
        }
    };
    let mut rows = Vec::new();
    for y in 0..height {
        rows.push(0);
        rows.extend((0..width).map(|x| colour(x, y)));
    }
    let palette: Vec<u8> = COLOURS.concat();
    let mut png = b"\x89PNG\r\n\x1a\n".to_vec();
    let mut header = Vec::new();
    header.extend(width.to_be_bytes());
    header.extend(height.to_be_bytes());
    header.extend([8, 3, 0, 0, 0]);
    chunk(&mut png, b"IHDR", &header);
    chunk(&mut png, b"PLTE", &palette);
    chunk(&mut png, b"IDAT", &stored(&rows));
    chunk(&mut png, b"IEND", &[]);
    png
}

/// A zlib stream without compression (RFC 1950, RFC 1951 §3.2.4).
fn stored(bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![0x78, 0x01];
    let mut parts = bytes.chunks(65_535).peekable();
    while let Some(part) = parts.next() {
        let length = u16::try_from(part.len()).expect("at most 65,535");
        out.push(u8::from(parts.peek().is_none()));
        out.extend(length.to_le_bytes());
        out.extend((!length).to_le_bytes());
        out.extend(part);
    }
    let (a, b) = bytes.iter().fold((1_u32, 0_u32), |(a, b), byte| {
        let a = (a + u32::from(*byte)) % 65_521;
        (a, (b + a) % 65_521)
    });
    out.extend(((b << 16) | a).to_be_bytes());
    out
}

fn chunk(png: &mut Vec<u8>, kind: &[u8; 4], data: &[u8]) {
    png.extend(u32::try_from(data.len()).expect("small").to_be_bytes());
    let mut checked = kind.to_vec();
    checked.extend(data);
    png.extend(&checked);
    let crc = checked.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { (crc >> 1) ^ 0xEDB8_8320 } else { crc >> 1 })
    });
    png.extend((!crc).to_be_bytes());
}
