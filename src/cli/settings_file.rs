//! The file of settings that `serve --config` names. Its members are the options of `serve`, spelled with underscores:
//!
//! ```toml
//! listen = "0.0.0.0:8080"
//! payload_bytes = 65536
//! drain_delay = "5s"
//! migrate = true
//! ```
//!
//! They stand in for the defaults of the options. So a flag and a variable win over them, and each is checked by the same
//! rules wherever it was given.

use std::path::PathBuf;

use clap::error::ContextKind;
use clap::{Command, CommandFactory as _, FromArgMatches as _};
use toml::de::{DeTable, DeValue};

use crate::cli::Cli;
use crate::cli::job_types::line_of;

/// The command that has such a file.
const SERVE: &str = "serve";

/// The option that names it, which the file itself cannot.
pub(super) const OPTION: &str = "config_file";

/// What is wrong with a file, and where.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("{0} cannot be read: {1}; give another file with --config or SOLEJOB_CONFIG")]
    Unreadable(PathBuf, std::io::Error),
    #[error("{path}, line {line}: {reason}")]
    At { path: String, line: usize, reason: String },
}

struct Member {
    /// The id of the option, which is the name of the member.
    name: String,
    /// The option, with its dashes.
    flag: String,
    value: String,
    line: usize,
}

/// Reads the arguments, the environment and the file; ends the process as clap does if the arguments are wrong.
pub(super) fn read() -> Result<Cli, Fault> {
    let mut command = Cli::command();
    let (mut path, mut members) = (String::new(), Vec::new());
    if let Some(file) = named(command.clone()) {
        let text = std::fs::read_to_string(&file).map_err(|error| Fault::Unreadable(file.clone(), error))?;
        path = file.display().to_string();
        members = parse(&text, &command).map_err(|(line, reason)| Fault::At {
            path: path.clone(),
            line,
            reason,
        })?;
        command = command.mut_subcommand(SERVE, |serve| members.iter().fold(serve, given));
    }
    let read = command.clone().try_get_matches();
    let error = match read.and_then(|mut matches| Cli::from_arg_matches_mut(&mut matches)) {
        Ok(cli) => return Ok(cli),
        Err(error) => error.format(&mut command),
    };
    let told = |kind| error.get(kind).map(ToString::to_string);
    let (option, value) = (told(ContextKind::InvalidArg), told(ContextKind::InvalidValue));
    let of = |member: &&Member| {
        let option = option.as_deref().and_then(|option| option.split(' ').next());
        option == Some(&*member.flag) && value.as_deref() == Some(&*member.value)
    };
    match members.iter().find(of) {
        Some(Member { name, line, .. }) => Err(Fault::At {
            path,
            line: *line,
            reason: match std::error::Error::source(&error) {
                Some(why) => format!("{name} cannot have this value: {why}"),
                None => format!("{name} cannot have this value: `solejob serve --help` says which it can"),
            },
        }),
        None => error.exit(),
    }
}

/// The file that a flag or the variable names, if the command is one that reads it. Whatever else is wrong with the
/// arguments is found later.
fn named(command: Command) -> Option<PathBuf> {
    let matches = command.ignore_errors(true).try_get_matches().ok()?;
    let (name, matches) = matches.subcommand()?;
    (name == SERVE).then(|| matches.try_get_one::<PathBuf>(OPTION).ok().flatten().cloned())?
}

/// A member as the default of its option. It has to live as long as the command, which is as long as the process.
fn given(serve: Command, member: &Member) -> Command {
    let value: &'static str = Box::leak(member.value.clone().into_boxed_str());
    serve.mut_arg(&member.name, |option| {
        // Not shown by --help, since it may be a secret; of a switch nothing is shown, and clap lets nobody say so.
        let hidden = option.get_action().takes_values();
        option.required(false).default_value(value).hide_default_value(hidden)
    })
}

/// The members of a file, or the line of what is wrong in it.
fn parse(text: &str, command: &Command) -> Result<Vec<Member>, (usize, String)> {
    let document = DeTable::parse(text).map_err(|error| {
        let place = error.span().map_or(0, |span| span.start);
        (line_of(text, place), error.message().to_owned())
    })?;
    let serve = command.find_subcommand(SERVE).map(Command::get_arguments);
    let options = serve.into_iter().flatten().collect::<Vec<_>>();
    let mut members = Vec::new();
    for (key, value) in document.into_inner() {
        let (at, name) = (line_of(text, key.span().start), key.into_inner().into_owned());
        // What has no variable is no setting, such as --help.
        let setting = options
            .iter()
            .find(|option| option.get_id() == &*name && name != OPTION && option.get_env().is_some());
        let Some(flag) = setting.and_then(|option| option.get_long()) else {
            let reason = format!(
                "there is no setting `{name}`: settings are the options of `solejob serve --help`, with `_` for `-`"
            );
            return Err((at, reason));
        };
        let value = match value.into_inner() {
            DeValue::String(text) => text.into_owned(),
            DeValue::Integer(number) if number.radix() == 10 => number.as_str().to_owned(),
            DeValue::Boolean(switch) => switch.to_string(),
            _ => {
                let reason = format!("`{name}` has to be a text, a whole number, or true or false");
                return Err((at, reason));
            }
        };
        members.push(Member {
            flag: format!("--{flag}"),
            name,
            value,
            line: at,
        });
    }
    Ok(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Parsed = Vec<(String, String, usize)>;

    fn parsed(text: &str) -> Result<Parsed, (usize, String)> {
        let members = parse(text, &Cli::command())?;
        let mut members = members
            .into_iter()
            .map(|member| (member.flag, member.value, member.line))
            .collect::<Vec<_>>();
        members.sort_by_key(|(_, _, line)| *line);
        Ok(members)
    }

    #[test]
    fn members_are_the_options_of_serve() {
        let text = "listen = \"0.0.0.0:1\"\n\npayload_bytes = 2048\nmigrate = true\n";
        let expected = [
            ("--listen", "0.0.0.0:1", 1),
            ("--payload-bytes", "2048", 3),
            ("--migrate", "true", 4),
        ];
        let expected = expected.map(|(flag, value, line)| (flag.to_owned(), value.to_owned(), line));
        assert_eq!(parsed(text), Ok(expected.to_vec()));
    }

    #[test]
    fn what_is_no_setting_is_said_with_its_line() {
        for (text, line, reason) in [
            ("listen = \"a\"\nlisten_on = \"b\"", 2, "no setting `listen_on`"),
            ("payload-bytes = 1", 1, "no setting `payload-bytes`"),
            ("config_file = \"x\"", 1, "no setting `config_file`"),
            ("help = true", 1, "no setting `help`"),
            ("\n[serve]\nlisten = \"a\"", 2, "no setting `serve`"),
            ("\nlisten = [\"a\"]", 2, "has to be a text"),
            ("listen = ", 1, ""),
        ] {
            let (at, why) = parsed(text).unwrap_err();
            assert!(at == line && why.contains(reason), "{text}: {at}: {why}");
        }
    }
}
