//! Lines of a file or of standard input, of bounded length, one at a time.

use std::io::{self, Read};

use tokio::sync::mpsc;

/// As much as a server takes in one request by default.
pub(super) const LINE_BYTES: usize = 16 << 20;
const CHUNK_BYTES: usize = 64 << 10;
const CHUNKS_AHEAD: usize = 4;

/// Reads in a thread of its own, which the end of the process does not wait for: whoever writes to our standard input
/// may take their time.
pub(super) struct Lines {
    chunks: mpsc::Receiver<io::Result<Vec<u8>>>,
    chunk: Vec<u8>,
    at: usize,
    /// How many bytes have been taken.
    pub(super) taken: u64,
}

#[derive(PartialEq, Eq, Debug)]
pub(super) enum Line {
    Whole,
    /// Longer than [`LINE_BYTES`].
    TooLong,
    End,
}

impl Lines {
    pub(super) fn of(mut source: impl Read + Send + 'static) -> Lines {
        let (sender, chunks) = mpsc::channel(CHUNKS_AHEAD);
        std::thread::spawn(move || {
            loop {
                let mut chunk = vec![0; CHUNK_BYTES];
                let read = match source.read(&mut chunk) {
                    Ok(0) => return,
                    Ok(count) => {
                        chunk.truncate(count);
                        Ok(chunk)
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => Err(error),
                };
                if sender.blocking_send(read).is_err() {
                    // Nobody reads on.
                    return;
                }
            }
        });
        Lines {
            chunks,
            chunk: Vec::new(),
            at: 0,
            taken: 0,
        }
    }

    /// Reads a line without its end into `line`. The last one may lack an end.
    pub(super) async fn next(&mut self, line: &mut Vec<u8>) -> io::Result<Line> {
        line.clear();
        let mut any = false;
        loop {
            if self.at == self.chunk.len() {
                // At the end it is empty, and stays so.
                (self.chunk, self.at) = (Vec::new(), 0);
                match self.chunks.recv().await {
                    Some(chunk) => self.chunk = chunk?,
                    None if any => break,
                    None => return Ok(Line::End),
                }
            }
            any = true;
            let rest = &self.chunk[self.at..];
            let end = rest.iter().position(|byte| *byte == b'\n');
            let part = &rest[..end.unwrap_or(rest.len())];
            // One byte more than may be kept says that there was more.
            let room = (LINE_BYTES + 1).saturating_sub(line.len());
            line.extend_from_slice(&part[..part.len().min(room)]);
            let used = part.len() + usize::from(end.is_some());
            self.at += used;
            self.taken += used as u64;
            if end.is_some() {
                break;
            }
        }
        Ok(match line.len() > LINE_BYTES {
            true => Line::TooLong,
            false => Line::Whole,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives a few bytes at a time.
    struct Drip(io::Cursor<Vec<u8>>, usize);

    impl Read for Drip {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let most = buffer.len().min(self.1);
            self.0.read(&mut buffer[..most])
        }
    }

    async fn lines(text: &[u8], drip: usize) -> Vec<Option<Vec<u8>>> {
        let mut source = Lines::of(Drip(io::Cursor::new(text.to_vec()), drip));
        let (mut found, mut line) = (Vec::new(), Vec::new());
        loop {
            assert!(found.len() < 10, "there is no end");
            match source.next(&mut line).await.unwrap() {
                Line::End => {
                    assert_eq!(source.taken, text.len() as u64);
                    assert_eq!(source.next(&mut line).await.unwrap(), Line::End);
                    return found;
                }
                Line::Whole => found.push(Some(line.clone())),
                Line::TooLong => found.push(None),
            }
        }
    }

    #[tokio::test]
    async fn lines_end_where_they_end() {
        let some = |text: &str| Some(text.as_bytes().to_vec());
        for drip in [1, 3, 100] {
            assert_eq!(lines(b"", drip).await, []);
            assert_eq!(lines(b"\n", drip).await, [some("")]);
            let wanted = [some("a"), some(""), some("bcd\r"), some("last")];
            assert_eq!(lines(b"a\n\nbcd\r\nlast", drip).await, wanted);
        }
        let fits = vec![b'x'; LINE_BYTES];
        let text = [&fits[..], b"\n", &fits, b"y\nz\n", &fits, b"y"].concat();
        assert_eq!(lines(&text, 1 << 20).await, [Some(fits.clone()), None, some("z"), None]);
        assert_eq!(lines(&text[..text.len() - 1], 1 << 20).await.pop(), Some(Some(fits)));
    }

    #[tokio::test]
    async fn a_fault_of_the_source_is_told() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::ErrorKind::IsADirectory.into())
            }
        }
        let read = Lines::of(Broken).next(&mut Vec::new()).await;
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::IsADirectory);
    }
}
