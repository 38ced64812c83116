//! Strict reading of JSON text: what serde_json lets pass and a dispatch must not hold.
