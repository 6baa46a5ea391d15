//! Property strings: Proxmox's `key=value,key=value` lists inside one configuration value.
//!
//! A [`Format`] lists the keys that a value may hold and what each may say. One key of a format can be its *default
//! key*, whose value may be written without `key=`. An *alias* is another name for a key; a format with a *key alias*
//! also remembers which name was used (`virtio=MAC` sets `macaddr`, and `model` to `virtio`).
//!
//! The reader follows `parse_property_string` and `check_prop` of `PVE::JSONSchema` (pve-common 9.2.1), down to the
//! order of the checks, because it decides which values Proxmox drops. Only ASCII white space is white space, and
//! lengths count bytes: Proxmox reads its files as bytes.
//!
//! It does not know what a key means, and it never changes a value.

use std::collections::BTreeSet;
use std::fmt;

/// What a key's value may be.
#[derive(Clone, Copy, Debug)]
pub enum Check {
    /// `1`, `on`, `yes`, `true` or `0`, `off`, `no`, `false`, in any case; without `key=` only `1` or `0`.
    Boolean,
    /// Decimal digits with an optional sign, within the two limits.
    Integer(Option<i32>, Option<i32>),
    /// A decimal number, perhaps with a fraction and an exponent, within the two limits.
    Number(Option<i32>, Option<i32>),
    /// One of these words.
    Enum(&'static [&'static str]),
    /// Anything.
    Text,
    /// A text that the schema's pattern matches as a whole.
    Pattern(fn(&str) -> bool),
    /// A text in a named format; the message says what it is not.
    Format(fn(&str) -> bool, &'static str),
}

/// One key of a [`Format`].
#[derive(Clone, Copy, Debug)]
pub struct Key {
    name: &'static str,
    check: Check,
    optional: bool,
    default: bool,
    max_length: Option<u16>,
    relation: Relation,
}

/// What a key has to do with another one.
#[derive(Clone, Copy, Debug)]
enum Relation {
    None,
    /// It is another name for that key.
    Alias(&'static str),
    /// It is another name for `of`, and the key `names` says that it was used.
    KeyAlias(&'static KeyAlias),
    /// It may not be there without that key.
    Requires(&'static str),
}

/// A key that has other names, and the one that says which of them was used.
#[derive(Clone, Copy, Debug)]
pub struct KeyAlias {
    /// The key that gets the value.
    pub of: &'static str,
    /// The key that gets the name.
    pub names: &'static str,
}

impl Key {
    /// A key that has to be there.
    pub const fn required(name: &'static str, check: Check) -> Self {
        Self {
            name,
            check,
            optional: false,
            default: false,
            max_length: None,
            relation: Relation::None,
        }
    }

    /// A key that may be missing.
    pub const fn optional(name: &'static str, check: Check) -> Self {
        let mut key = Self::required(name, check);
        key.optional = true;
        key
    }

    /// Another name for the key `of`.
    pub const fn alias(name: &'static str, of: &'static str) -> Self {
        let mut key = Self::optional(name, Check::Text);
        key.relation = Relation::Alias(of);
        key
    }

    /// Another name for a key, and a value of another one.
    pub const fn key_alias(name: &'static str, key_alias: &'static KeyAlias) -> Self {
        let mut key = Self::optional(name, Check::Text);
        key.relation = Relation::KeyAlias(key_alias);
        key
    }

    /// Lets the key's value stand without `key=`.
    #[must_use]
    pub const fn default_key(mut self) -> Self {
        self.default = true;
        self
    }

    /// Makes the key depend on another one.
    #[must_use]
    pub const fn requires(mut self, other: &'static str) -> Self {
        self.relation = Relation::Requires(other);
        self
    }

    /// Limits the value to so many bytes.
    #[must_use]
    pub const fn max_length(mut self, bytes: u16) -> Self {
        self.max_length = Some(bytes);
        self
    }
}

/// The keys of one kind of property string.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    keys: &'static [Key],
    more: &'static [Key],
}

/// A property string that fits its format: its values by key, as written, except that booleans are `1` or `0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties<'a> {
    values: Vec<(&'a str, &'a str)>,
}

/// Why Proxmox refuses a property string. `Display` is the first line of Proxmox's own message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// A part with `=` lacks the key before it or the value after it.
    #[error("missing key in comma-separated list property")]
    MissingKey {
        /// The part, as written.
        part: String,
    },
    /// A key is there twice. A key that the format does not know is checked for this first.
    #[error("duplicate key in comma-separated list property: {key}")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// Two names of the same aliased key are there.
    #[error("key alias '{key}' is already defined")]
    DuplicateAlias {
        /// The key that says which name was used.
        key: &'static str,
    },
    /// A part without `=`, in a format without a default key.
    #[error("value without key, but schema does not define a default key")]
    NoDefaultKey {
        /// The part, as written.
        part: String,
    },
    /// Keys or values that the format does not allow; at least one.
    #[error("format error")]
    Schema {
        /// One per offending key.
        reasons: Vec<Reason>,
    },
}

impl FormatError {
    /// What is wrong, in one line: Proxmox's first line, then the reasons of a format error or the offending part.
    pub fn detail(&self) -> String {
        match self {
            Self::Schema { reasons } => {
                const MOST: usize = 8;
                let shown = reasons.iter().take(MOST).map(ToString::to_string);
                let mut lines: Vec<String> = shown.collect();
                if reasons.len() > MOST {
                    lines.push(format!("and {} more", reasons.len() - MOST));
                }
                format!("{self}: {}", lines.join("; "))
            }
            Self::MissingKey { part } => format!("{self} ('{part}')"),
            other => other.to_string(),
        }
    }
}

/// What a format holds against one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The key.
    pub key: String,
    /// Proxmox's words.
    pub text: String,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.text)
    }
}

impl Format {
    /// A format of these keys.
    pub const fn new(keys: &'static [Key]) -> Self {
        Self { keys, more: &[] }
    }

    /// A format of keys that it shares with others, and of its own.
    pub const fn with(shared: &'static [Key], own: &'static [Key]) -> Self {
        Self {
            keys: shared,
            more: own,
        }
    }

    fn keys(&self) -> impl Iterator<Item = &'static Key> + use<> {
        self.keys.iter().chain(self.more)
    }

    fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys().find(|key| key.name == name)
    }

    /// Reads a value.
    ///
    /// # Errors
    /// What Proxmox would refuse the value for. Errors of the list's shape come before those of keys and values.
    pub fn parse<'a>(&self, text: &'a str) -> Result<Properties<'a>, FormatError> {
        let mut values: Vec<(&'a str, &'a str)> = Vec::new();
        let mut unknown: BTreeSet<&'a str> = BTreeSet::new();
        let mut bare_seen = false;
        for part in text.split(',') {
            if is_blank(part) {
                continue;
            }
            match part.split_once('=') {
                None => {
                    let Some(name) = self.keys().find(|key| key.default).map(|key| key.name) else {
                        return Err(FormatError::NoDefaultKey {
                            part: part.to_owned(),
                        });
                    };
                    // Proxmox asks whether the earlier value is true, not whether there is one: a `0` is replaced.
                    match values.iter_mut().find(|(known, _)| *known == name) {
                        Some((_, value)) if !bare_seen && *value == "0" => *value = part,
                        Some(_) => {
                            return Err(FormatError::DuplicateKey {
                                key: name.to_owned(),
                            });
                        }
                        None => values.push((name, part)),
                    }
                    bare_seen = true;
                }
                Some((name, value)) => {
                    let value = value.strip_suffix('\n').unwrap_or(value);
                    if name.is_empty() || value.is_empty() || value.contains('\n') {
                        return Err(FormatError::MissingKey {
                            part: part.to_owned(),
                        });
                    }
                    // Apart, so that a value of a million made-up keys does not take long.
                    if self.key(name).is_some() {
                        self.add(&mut values, name, value)?;
                    } else if !unknown.insert(name) {
                        return Err(FormatError::DuplicateKey {
                            key: name.to_owned(),
                        });
                    }
                }
            }
        }
        let mut reasons = self.check(&values);
        reasons.extend(unknown.into_iter().map(|name| Reason {
            key: name.to_owned(),
            text: "property is not defined in schema and the schema does not allow additional properties"
                .to_owned(),
        }));
        if reasons.is_empty() {
            Ok(Properties { values })
        } else {
            Err(FormatError::Schema { reasons })
        }
    }

    fn add<'a>(
        &self,
        values: &mut Vec<(&'a str, &'a str)>,
        name: &'a str,
        value: &'a str,
    ) -> Result<(), FormatError> {
        if values.iter().any(|(known, _)| *known == name) {
            return Err(FormatError::DuplicateKey {
                key: name.to_owned(),
            });
        }
        let mut target = name;
        match self.key(name).map(|key| key.relation) {
            Some(Relation::Alias(of)) => target = of,
            Some(Relation::KeyAlias(KeyAlias { of, names })) => {
                if values.iter().any(|(known, _)| known == names) {
                    return Err(FormatError::DuplicateAlias { key: names });
                }
                values.push((names, name));
                target = of;
            }
            Some(Relation::None | Relation::Requires(_)) | None => {}
        }
        // Only a value with `key=` is read as a boolean word; a bare one has to be `1` or `0` already.
        let is_boolean = self
            .key(target)
            .is_some_and(|key| matches!(key.check, Check::Boolean));
        let value = match parse_boolean(value) {
            Some(true) if is_boolean => "1",
            Some(false) if is_boolean => "0",
            _ => value,
        };
        // An alias silently replaces what the key held before.
        match values.iter_mut().find(|(known, _)| *known == target) {
            Some((_, old)) => *old = value,
            None => values.push((target, value)),
        }
        Ok(())
    }

    fn check(&self, values: &[(&str, &str)]) -> Vec<Reason> {
        let mut reasons = Vec::new();
        for key in self.keys() {
            let value = values.iter().find(|(name, _)| *name == key.name);
            let complaint = match value {
                Some((_, value)) => key.complaint(value),
                None if key.optional => None,
                None => Some("property is missing and it is not optional".to_owned()),
            };
            if let Some(text) = complaint {
                reasons.push(Reason {
                    key: key.name.to_owned(),
                    text,
                });
            }
        }
        for (name, _) in values {
            if let Some(Relation::Requires(required)) = self.key(name).map(|key| key.relation)
                && !values.iter().any(|(known, _)| *known == required)
            {
                reasons.push(Reason {
                    key: required.to_owned(),
                    text: format!("missing property - '{name}' requires this property"),
                });
            }
        }
        reasons
    }
}

impl Key {
    fn complaint(&self, value: &str) -> Option<String> {
        if let Some(text) = self.check.complaint(value) {
            return Some(text);
        }
        let limit = self.max_length?;
        (value.len() > limit.into()).then(|| format!("value may only be {limit} characters long"))
    }
}

impl Check {
    /// What Proxmox would hold against this value, if anything.
    pub fn complaint(&self, value: &str) -> Option<String> {
        let mismatch = |kind: &str| Some(format!("type check ('{kind}') failed - got '{value}'"));
        match self {
            Self::Text => None,
            Self::Boolean if matches!(value, "0" | "1") => None,
            Self::Boolean => mismatch("boolean"),
            Self::Integer(min, max) => {
                if !is_integer(value) {
                    return mismatch("integer");
                }
                out_of_range(value, *min, *max)
            }
            Self::Number(min, max) => {
                if !is_number(value) {
                    return mismatch("number");
                }
                out_of_range(value, *min, *max)
            }
            Self::Enum(words) => (!words.contains(&value)).then(|| {
                let words = words.join(", ");
                format!("value '{value}' does not have a value in the enumeration '{words}'")
            }),
            Self::Pattern(matches) => {
                (!matches(value)).then(|| "value does not match the regex pattern".to_owned())
            }
            Self::Format(matches, message) => {
                (!matches(value)).then(|| format!("invalid format - {message}"))
            }
        }
    }
}

/// Proxmox compares as floating point, integers too.
fn out_of_range(value: &str, min: Option<i32>, max: Option<i32>) -> Option<String> {
    let number: f64 = value.parse().ok()?;
    if let Some(max) = max
        && number > f64::from(max)
    {
        return Some(format!("value must have a maximum value of {max}"));
    }
    if let Some(min) = min
        && number < f64::from(min)
    {
        return Some(format!("value must have a minimum value of {min}"));
    }
    None
}

impl<'a> Properties<'a> {
    /// The value of a key, as written.
    pub fn get(&self, key: &str) -> Option<&'a str> {
        self.values
            .iter()
            .find(|(name, _)| *name == key)
            .map(|(_, value)| *value)
    }

    /// The value of a boolean key.
    pub fn boolean(&self, key: &str) -> Option<bool> {
        self.get(key).map(|value| value == "1")
    }
}

/// Reads a boolean as Proxmox does; `None` where it is none.
pub fn parse_boolean(text: &str) -> Option<bool> {
    let is = |word: &&str| text.eq_ignore_ascii_case(word);
    if ["1", "on", "yes", "true"].iter().any(is) {
        Some(true)
    } else if ["0", "off", "no", "false"].iter().any(is) {
        Some(false)
    } else {
        None
    }
}

/// Whether a byte is white space in Perl's `\s` on bytes.
pub(super) const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

/// Whether a text has nothing but white space.
pub(super) fn is_blank(text: &str) -> bool {
    text.bytes().all(is_space)
}

pub(super) fn is_integer(text: &str) -> bool {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

pub(super) fn is_number(text: &str) -> bool {
    let text = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let mantissa_fits = match mantissa.split_once('.') {
        Some((whole, fraction)) => {
            all_digits(whole) && all_digits(fraction) && whole.len() + fraction.len() > 0
        }
        None => !mantissa.is_empty() && all_digits(mantissa),
    };
    mantissa_fits && exponent.is_none_or(is_integer)
}

#[cfg(test)]
mod tests {
    use super::{Check, Format, FormatError, Key, KeyAlias, is_number, parse_boolean};

    static MODEL: KeyAlias = KeyAlias {
        of: "macaddr",
        names: "model",
    };
    static NET: Format = Format::new(&[
        Key::required("model", Check::Enum(&["e1000", "virtio"])).default_key(),
        Key::optional("macaddr", Check::Text).max_length(17),
        Key::key_alias("virtio", &MODEL),
        Key::key_alias("e1000", &MODEL),
        Key::optional("queues", Check::Integer(Some(0), Some(64))),
    ]);
    static PLAIN: Format = Format::new(&[Key::optional("rate", Check::Number(Some(0), None))]);

    #[test]
    fn an_alias_sets_its_key_and_names_itself() {
        let values = NET.parse("virtio=AA,queues=4").unwrap();
        assert_eq!(values.get("macaddr"), Some("AA"));
        assert_eq!(values.get("model"), Some("virtio"));
        assert_eq!(values.get("virtio"), None);
        assert_eq!(
            NET.parse("virtio=AA,e1000=BB"),
            Err(FormatError::DuplicateAlias { key: "model" })
        );
    }

    #[test]
    fn the_default_key_stands_alone_once() {
        assert_eq!(NET.parse("e1000").unwrap().get("model"), Some("e1000"));
        let twice = FormatError::DuplicateKey {
            key: "model".to_owned(),
        };
        for text in [
            "e1000,virtio",
            "model=e1000,virtio",
            "e1000,model=virtio",
            "0,0",
        ] {
            assert_eq!(NET.parse(text), Err(twice.clone()), "{text}");
        }
        let replaced = NET.parse("model=0,virtio").unwrap();
        assert_eq!(replaced.get("model"), Some("virtio"));
        assert!(matches!(
            PLAIN.parse("5"),
            Err(FormatError::NoDefaultKey { part }) if part == "5"
        ));
    }

    #[test]
    fn shape_is_judged_before_content() {
        assert!(matches!(
            NET.parse("nope=1,nope=2"),
            Err(FormatError::DuplicateKey { key }) if key == "nope"
        ));
        assert!(matches!(
            NET.parse("nope=1,=2"),
            Err(FormatError::MissingKey { part }) if part == "=2"
        ));
        let error = NET.parse("nope=1,queues=65").unwrap_err();
        assert_eq!(error.to_string(), "format error");
        assert_eq!(
            error.detail(),
            "format error: model: property is missing and it is not optional; queues: value must have a maximum value of 64; \
             nope: property is not defined in schema and the schema does not allow additional properties"
        );
        assert_eq!(
            NET.parse("e1000,macaddr=012345678901234567")
                .unwrap_err()
                .detail(),
            "format error: macaddr: value may only be 17 characters long"
        );
    }

    #[test]
    fn a_key_can_require_another() {
        static FORMAT: Format = Format::new(&[
            Key::optional("ip", Check::Text),
            Key::optional("gw", Check::Text).requires("ip"),
        ]);
        assert!(FORMAT.parse("gw=a,ip=b").is_ok());
        assert_eq!(
            FORMAT.parse("gw=a").unwrap_err().detail(),
            "format error: ip: missing property - 'gw' requires this property"
        );
    }

    #[test]
    fn a_bare_boolean_has_to_be_a_digit() {
        static FORMAT: Format =
            Format::new(&[Key::required("enabled", Check::Boolean).default_key()]);
        assert_eq!(FORMAT.parse("1").unwrap().boolean("enabled"), Some(true));
        assert_eq!(
            FORMAT.parse("enabled=Off").unwrap().boolean("enabled"),
            Some(false)
        );
        assert!(FORMAT.parse("yes").is_err());
    }

    #[test]
    fn blank_parts_do_not_count() {
        assert!(PLAIN.parse(" ,,\t,rate=1.5,").is_ok());
        assert!(PLAIN.parse("").is_ok());
        assert!(PLAIN.parse("\u{a0}").is_err());
    }

    #[test]
    fn numbers_and_booleans_as_perl_spells_them() {
        for good in ["1", "+1", "-1.5", "1.", ".5", "1e5", "1.5E-3"] {
            assert!(is_number(good), "{good}");
        }
        for bad in [
            "", ".", "1e", "e5", "1.2.3", "0x1", " 1", "1 ", "inf", "nan",
        ] {
            assert!(!is_number(bad), "{bad}");
        }
        assert_eq!(parse_boolean("oN"), Some(true));
        assert_eq!(parse_boolean("FALSE"), Some(false));
        assert_eq!(parse_boolean("y"), None);
    }
}
