//! Just enough of PostgreSQL's protocol to make a database over a trusted socket. Not every installation brings
//! `psql` or `createdb`, and the real client belongs to another room.

use std::io;
use std::path::Path;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

/// Of protocol 3.0, the only one that all supported servers speak.
const PROTOCOL: i32 = 3 << 16;

/// Nothing asked for here has answers anywhere near this size.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub(super) enum WireError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{message} (SQLSTATE {code})")]
    Server { code: String, message: String },
    #[error("the server answered out of turn: {0}")]
    Protocol(&'static str),
}

impl WireError {
    pub(super) fn is_duplicate_database(&self) -> bool {
        matches!(self, WireError::Server { code, .. } if code == "42P04")
    }
}

pub(super) struct Connection {
    stream: UnixStream,
}

impl Connection {
    pub(super) async fn open(socket: &Path, user: &str, database: &str) -> Result<Connection, WireError> {
        let mut stream = UnixStream::connect(socket).await?;
        let mut body = PROTOCOL.to_be_bytes().to_vec();
        for text in ["user", user, "database", database, ""] {
            body.extend_from_slice(text.as_bytes());
            body.push(0);
        }
        stream.write_all(&framed(None, &body)).await?;
        let mut connection = Connection { stream };
        connection.until_ready().await?;
        Ok(connection)
    }

    /// Runs one statement and tells how many rows came back.
    pub(super) async fn query(&mut self, sql: &str) -> Result<usize, WireError> {
        let mut body = sql.as_bytes().to_vec();
        body.push(0);
        self.stream.write_all(&framed(Some(b'Q'), &body)).await?;
        self.until_ready().await
    }

    pub(super) async fn close(mut self) {
        // A courtesy that spares a line in the server's log.
        let _ = self.stream.write_all(&framed(Some(b'X'), &[])).await;
    }

    async fn until_ready(&mut self) -> Result<usize, WireError> {
        let mut rows = 0;
        let mut refused = None;
        loop {
            let kind = match self.stream.read_u8().await {
                // A refusal at the greeting is the last word on the connection.
                Err(error) => return Err(refused.unwrap_or(WireError::Io(error))),
                Ok(kind) => kind,
            };
            let length = usize::try_from(self.stream.read_i32().await?).unwrap_or(0);
            if !(4..=MESSAGE_BYTES_MAX).contains(&length) {
                return Err(WireError::Protocol("a message of impossible length"));
            }
            let mut body = vec![0; length - 4];
            self.stream.read_exact(&mut body).await?;
            match kind {
                b'Z' => return refused.map_or(Ok(rows), Err),
                b'D' => rows += 1,
                b'E' => refused = Some(server_error(&body)),
                b'R' if body != [0; 4] => return Err(WireError::Protocol("it asks for a password")),
                _ => {} // parameters, notices, tags: of no interest here
            }
        }
    }
}

fn framed(kind: Option<u8>, body: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(body.len() + 5);
    message.extend(kind);
    // The length counts itself. Bodies are statements of this room, far from any overflow.
    let length = u32::try_from(body.len() + 4).unwrap_or(u32::MAX);
    message.extend_from_slice(&length.to_be_bytes());
    message.extend_from_slice(body);
    message
}

fn server_error(body: &[u8]) -> WireError {
    let field = |wanted: u8| {
        let mut fields = body.split(|byte| *byte == 0);
        let found = fields.find(|field| field.first() == Some(&wanted));
        found.map_or_else(String::new, |field| String::from_utf8_lossy(&field[1..]).into_owned())
    };
    WireError::Server {
        code: field(b'C'),
        message: field(b'M'),
    }
}

pub(super) fn quoted_identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

pub(super) fn quoted_literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_framed_with_a_length_that_counts_itself() {
        assert_eq!(framed(Some(b'X'), &[]), [b'X', 0, 0, 0, 4]);
        assert_eq!(framed(None, &[7]), [0, 0, 0, 5, 7]);
    }

    #[test]
    fn a_refusal_keeps_its_code_and_its_words() {
        let error = server_error(b"SERROR\0C42P04\0Mdatabase \"a\" already exists\0\0");
        assert!(error.is_duplicate_database());
        assert_eq!(error.to_string(), "database \"a\" already exists (SQLSTATE 42P04)");
    }

    #[test]
    fn names_cannot_leave_their_quotes() {
        assert_eq!(quoted_identifier("a\"b"), "\"a\"\"b\"");
        assert_eq!(quoted_literal("a'b"), "'a''b'");
    }
}
