//! Settings from a file: a flag wins over a variable, a variable over the file, the file over the default; and whatever
//! is wrong is said with its place.

use serde_json::json;

use crate::support::{App, Options, Scratch, solejob};

#[tokio::test]
async fn flag_and_variable_and_file_win_in_this_order() {
    let scratch = Scratch::new();
    let file = "batch_items = 2\nbatch_bytes = 4096\npayload_bytes = 2048\n";
    let file = scratch.write("solejob.toml", file);
    let options = Options::default().env("SOLEJOB_CONFIG", &file);
    let options = options
        .env("SOLEJOB_BATCH_ITEMS", "3")
        .env("SOLEJOB_BATCH_BYTES", "4097");
    let app = App::with(options.arg("--batch-bytes=100000")).await;
    let batch = |items: usize, bytes: usize| {
        let job = json!({"name": "n", "payload": "x".repeat(bytes)});
        json!({"jobs": vec![job; items]})
    };
    // The variable.
    app.post("/v1/jobs/batch", &batch(3, 1), 200).await;
    app.post("/v1/jobs/batch", &batch(4, 1), 413).await;
    // The flag.
    app.post("/v1/jobs/batch", &batch(3, 2_000), 200).await;
    // The file; the default is a mebibyte.
    app.post("/v1/jobs", &json!({"name": "n", "payload": "x".repeat(3_000)}), 413)
        .await;
    app.finish().await;
}

fn refused(file: &str, env: &[(&str, &str)]) -> String {
    let scratch = Scratch::new();
    let path = scratch.write("solejob.toml", file);
    // Port 1 answers nobody: who got so far would wait for a database.
    let mut command = solejob("postgres://u:p@127.0.0.1:1/x");
    command.envs(env.iter().copied());
    command.args(["serve", "--database-wait=0s", "--config", &path]);
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{file}: {said}");
    said.replace(&path, "FILE")
}

#[test]
fn what_is_wrong_in_a_file_is_said_with_its_line() {
    for (file, said) in [
        (
            "listen = \"127.0.0.1:0\"\nlisten_on = 1\n",
            "solejob: FILE, line 2: there is no setting `listen_on`",
        ),
        (
            "\npayload_bytes = 1\n",
            "solejob: FILE, line 2: payload_bytes cannot have this value: ",
        ),
        (
            "\n\ndrain_delay = \"5 parsecs\"\n",
            "solejob: FILE, line 3: drain_delay cannot have this value: ",
        ),
        (
            "migrate = \"perhaps\"",
            "solejob: FILE, line 1: migrate cannot have this value",
        ),
        ("listen", "solejob: FILE, line 1: "),
    ] {
        let text = refused(file, &[]);
        assert!(text.contains(said), "{file}: {text}");
    }
    // A variable that is wrong is no fault of the file.
    let text = refused("payload_bytes = 4096", &[("SOLEJOB_PAYLOAD_BYTES", "2")]);
    assert!(text.contains("--payload-bytes") && !text.contains("FILE"), "{text}");
    // Half of TLS would be none.
    let text = refused("tls_cert = \"/nowhere\"", &[]);
    assert!(text.contains("tls_key"), "{text}");
}

#[test]
fn a_file_that_is_not_there_is_an_error_and_help_shows_no_secret_of_one_that_is() {
    let mut command = solejob("postgres://u:p@127.0.0.1:1/x");
    let output = command.args(["serve", "--config", "/nowhere.toml"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("/nowhere.toml cannot be read"), "{said}");

    let scratch = Scratch::new();
    let path = scratch.write("solejob.toml", "bootstrap_token = \"canary-0123456789abcdef\"\n");
    let mut command = solejob("postgres://u:p@127.0.0.1:1/x");
    let output = command.args(["serve", "--config", &path, "--help"]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("--bootstrap-token") && !said.contains("canary"), "{said}");
}
