//! Mapping files: their text, and their parameters.

use crate::{
    Map, MapError, Result, Unmapped, additions::Sections, map::check_sides, number::Number,
    rule::Rule,
};
use reshard_model::shortened;
use std::collections::BTreeMap;

mod additions;
mod fields;
mod verbs;

use fields::Fields;

/// The longest text of a map, in bytes.
const MAX_TEXT: usize = 1 << 20;

/// The most rules of a map.
const MAX_RULES: usize = 4096;

/// The most parameters of a map.
const MAX_PARAMETERS: usize = 256;

/// A mapping file: rules, and parameters whose values are not known yet.
///
/// ```
/// use reshard_map::{Limits, MapFile, Source};
/// use reshard_model::DType;
///
/// let file = MapFile::parse(r#"
///     [parameters.heads]
///     about = "attention heads"
///
///     [[rule]]
///     split = "{layer*}.qkv"
///     to = ["{layer}.q", "{layer}.k", "{layer}.v"]
///     sizes = ["heads * 2", 2, 2]
/// "#)?;
/// let map = file.bind(&[("heads".into(), 3)].into())?;
/// let stored = [Source::new("0.qkv", DType::Float32, [10, 4])];
/// let mapped = map.apply(stored, [], Limits::default())?;
/// assert_eq!(mapped.tensor("0.q").unwrap().shape()[..], [6, 4]);
/// assert_eq!(mapped.tensors().len(), 3);
/// # Ok::<(), reshard_map::MapError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapFile {
    about: Option<String>,
    unmapped: Unmapped,
    parameters: BTreeMap<String, Parameter>,
    rules: Vec<Rule<Number>>,
    sections: Sections<Number>,
}

/// A number that a map needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    about: Option<String>,
    args: Option<String>,
    config: Option<String>,
    default: Option<Number>,
    /// Whether the default is only for the map itself, so that its inverse needs a value.
    forward_default: bool,
}

impl Parameter {
    /// What it is.
    pub fn about(&self) -> Option<&str> {
        self.about.as_deref()
    }

    /// Its name in the `args` of a checkpoint of Megatron-LM.
    pub fn args(&self) -> Option<&str> {
        self.args.as_deref()
    }

    /// Its name in the `config.json` of Hugging Face's transformers.
    pub fn config(&self) -> Option<&str> {
        self.config.as_deref()
    }

    /// Whether it must be given.
    pub fn is_required(&self) -> bool {
        self.default.is_none()
    }
}

impl MapFile {
    /// Reads the text of a map.
    ///
    /// # Errors
    /// [`MapError::Syntax`], [`MapError::Rule`] and [`MapError::Parameter`] say what is wrong where; [`MapError::Limit`].
    pub fn parse(text: &str) -> Result<Self> {
        if text.len() > MAX_TEXT {
            return Err(MapError::Syntax(format!(
                "it has more than {MAX_TEXT} bytes"
            )));
        }
        let table: toml::Table = text
            .parse()
            .map_err(|e: toml::de::Error| MapError::Syntax(short_lines(&e.to_string())))?;
        let mut fields = Fields::new(table);
        let syntax = MapError::Syntax;
        let about = fields.text("about").map_err(syntax)?;
        let unmapped = unmapped(fields.text("unmapped").map_err(syntax)?.as_deref())?;
        let parameters = fields.take("parameters");
        let rules = fields.take("rule");
        let sections = additions::sections(&mut fields)?;
        fields.done().map_err(|what| {
            syntax(format!(
                "{what}; a map has `about`, `unmapped`, `[parameters.NAME]`, `[[rule]]`, `[[object]]`, `[common]` and `[args]`"
            ))
        })?;

        let rules = match rules {
            None => return Err(syntax("it has no `[[rule]]`".into())),
            Some(toml::Value::Array(rules)) if rules.len() <= MAX_RULES => rules,
            Some(toml::Value::Array(_)) => {
                return Err(syntax(format!("it has more than {MAX_RULES} rules")));
            }
            Some(_) => return Err(syntax("`rule` is no list; write `[[rule]]`".into())),
        };
        let rules = rules.into_iter().zip(1..).map(|(rule, number)| match rule {
            toml::Value::Table(table) => verbs::rule(number, Fields::new(table)),
            _ => Err(MapError::Rule {
                rule: number,
                verb: "",
                what: "it is no table; write `[[rule]]`".into(),
            }),
        });
        let out = Self {
            about,
            unmapped,
            parameters: parameters_of(parameters)?,
            rules: rules.collect::<Result<_>>()?,
            sections,
        };
        out.check_names()?;
        Ok(out)
    }

    /// What the map is for.
    pub fn about(&self) -> Option<&str> {
        self.about.as_deref()
    }

    /// The parameters, by name.
    pub fn parameters(&self) -> impl ExactSizeIterator<Item = (&str, &Parameter)> {
        self.parameters.iter().map(|(name, p)| (&**name, p))
    }

    /// Refuses rules and defaults that name parameters which are not declared.
    fn check_names(&self) -> Result<()> {
        let unknown = |number: &Number| {
            number
                .names()
                .find(|n| !self.parameters.contains_key(*n))
                .map(String::from)
        };
        let undeclared = |name: String| MapError::Parameter {
            what: format!("it is used, but not declared; write `[parameters.{name}]`"),
            name,
        };
        let defaults = self.parameters.values().filter_map(|p| p.default.as_ref());
        if let Some(name) = defaults.filter_map(unknown).next() {
            return Err(undeclared(name));
        }
        let mut check =
            |number: Number| unknown(&number).map_or(Ok(()), |name| Err(undeclared(name)));
        for rule in &self.rules {
            rule.verb.clone().bind(&mut check)?;
            rule.when.clone().map_or(Ok(()), &mut check)?;
        }
        self.sections.clone().bind(&mut check).map(drop)
    }

    /// The map with these values of its parameters. Those that are not given have their defaults.
    ///
    /// # Errors
    /// [`MapError::Parameter`]: a parameter is missing, is not one of the map, or an expression has no value.
    pub fn bind(&self, given: &BTreeMap<String, u64>) -> Result<Map> {
        if let Some(name) = given
            .keys()
            .find(|name| !self.parameters.contains_key(*name))
        {
            let known: Vec<&str> = self.parameters.keys().map(|n| &**n).collect();
            return Err(MapError::Parameter {
                name: name.clone(),
                what: match &*known {
                    [] => "the map has no parameters".into(),
                    known => format!("the map has no such parameter; it has {}", known.join(", ")),
                },
            });
        }
        let values = self.values(given)?;
        let mut rules = Vec::with_capacity(self.rules.len());
        for rule in &self.rules {
            let mut bind = |number: Number| {
                number.of(&values).map_err(|what| MapError::Rule {
                    rule: rule.number,
                    verb: rule.verb.name(),
                    what,
                })
            };
            let when = rule.when.clone().map(&mut bind).transpose()?;
            if when != Some(0) {
                rules.push(Rule {
                    number: rule.number,
                    verb: rule.verb.clone().bind(&mut bind)?,
                    optional: rule.optional,
                    prepares: rule.prepares,
                    direction: rule.direction,
                    when,
                });
            }
        }
        let sections = self.sections.clone().bind(&mut |number: Number| {
            let fault =
                |what| MapError::Syntax(format!("`[[object]]`, `[common]` or `[args]`: {what}"));
            number.of(&values).map_err(fault)
        })?;
        // A default that is only for the map itself.
        let defaulted =
            |(name, p): &(&String, &Parameter)| p.forward_default && !given.contains_key(*name);
        let needed = self.parameters.iter().find(defaulted);
        Ok(Map {
            rules,
            unmapped: self.unmapped,
            sections,
            is_inverse: false,
            inverse_needs: needed.map(|(name, p)| (name.clone(), p.missing())),
        })
    }

    /// Fails if no rule matches any of a checkpoint's keys, or if the map refuses unmapped tensors and its inverse matches more of them. It
    /// needs no parameters, so it is worth asking before you look for their values. `inverse` asks for the inverse map.
    ///
    /// # Errors
    /// [`MapError::NoMatch`]
    pub fn check_keys<'k>(
        &self,
        keys: impl Iterator<Item = &'k str> + Clone,
        inverse: bool,
    ) -> Result<()> {
        if !inverse {
            return check_sides(&self.rules, self.unmapped, keys);
        }
        // If a rule has no inverse, nothing can be said: `Map::inverse` names it.
        let rules: Result<Vec<_>, _> = self.rules.iter().map(Rule::inverse).collect();
        rules.map_or(Ok(()), |rules| check_sides(&rules, self.unmapped, keys))
    }

    /// The values of all parameters, with defaults for those that are not given. A default may use other parameters.
    ///
    /// # Errors
    /// [`MapError::Parameter`]: a parameter is missing, or an expression has no value.
    pub fn values(&self, given: &BTreeMap<String, u64>) -> Result<BTreeMap<String, u64>> {
        let mut values = given.clone();
        loop {
            let ready = self.parameters.iter().find_map(|(name, p)| {
                let default = p.default.as_ref().filter(|_| !values.contains_key(name))?;
                let known = default.names().all(|n| values.contains_key(n));
                known.then_some((name, default))
            });
            let Some((name, default)) = ready else { break };
            let value = default.of(&values).map_err(|what| MapError::Parameter {
                name: name.clone(),
                what,
            })?;
            values.insert(name.clone(), value);
        }
        let unknown = |(name, _): &(&String, _)| !values.contains_key(*name);
        let mut missing = self.parameters.iter().filter(unknown);
        let required: Vec<_> = missing.clone().filter(|(_, p)| p.is_required()).collect();
        let (name, what) = match (&*required, missing.next()) {
            ([(name, p)], _) => (*name, p.missing()),
            ([(name, p), more @ ..], _) => {
                let more: Vec<String> = more.iter().map(|(name, _)| format!("`{name}`")).collect();
                (
                    *name,
                    format!("{}; the map also needs {}", p.missing(), more.join(", ")),
                )
            }
            ([], Some((name, _))) => self.circle(name, &values),
            ([], None) => return Ok(values),
        };
        Err(MapError::Parameter {
            name: name.clone(),
            what,
        })
    }

    /// A parameter whose default needs itself, and what is to be given. `from` is unknown, and so is a parameter of each unknown one's default: they
    /// lead to a circle.
    fn circle<'a>(
        &'a self,
        from: &'a String,
        values: &BTreeMap<String, u64>,
    ) -> (&'a String, String) {
        let mut way: Vec<(&String, &Parameter)> = Vec::new();
        let mut next = self.parameters.get_key_value(from);
        while let Some((name, p)) = next {
            if let Some(at) = way.iter().position(|(seen, _)| *seen == name) {
                way.drain(..at);
                break;
            }
            way.push((name, p));
            let unknown = |n: &&str| !values.contains_key(*n);
            let needed = p.default.as_ref().and_then(|d| d.names().find(unknown));
            next = needed.and_then(|n| self.parameters.get_key_value(n));
        }
        let told = |(name, p): &(&String, &Parameter)| format!("`{name}`{}", p.described());
        let all: Vec<String> = way.iter().map(told).collect();
        let what = match (&*way, &*all) {
            ([(_, p)], _) => p.missing(),
            (_, [a, b]) => format!("neither {a} nor {b} is known; give one of them"),
            (_, all) => format!("none of {} is known; give one of them", all.join(", ")),
        };
        (way.first().map_or(from, |(name, _)| name), what)
    }
}

impl Parameter {
    /// What it is and where it can be taken from, in brackets.
    fn described(&self) -> String {
        let about = self.about.clone();
        let parts: Vec<String> = about.into_iter().chain(self.places()).collect();
        match &*parts {
            [] => String::new(),
            parts => format!(" ({})", parts.join("; ")),
        }
    }

    /// Where its value can be taken from.
    fn places(&self) -> Option<String> {
        let places = [("args", &self.args), ("config.json", &self.config)];
        let places: Vec<String> = places
            .iter()
            .filter_map(|(place, name)| Some(format!("`{}` of {place}", name.as_ref()?)))
            .collect();
        (!places.is_empty()).then(|| places.join(" or "))
    }

    fn missing(&self) -> String {
        let about = self
            .about
            .as_ref()
            .map_or_else(String::new, |a| format!(" ({a})"));
        let or = self.places().map_or_else(String::new, |places| {
            format!("; it can be taken from {places}")
        });
        match &self.default {
            None => format!("its value is not known{about}; give it{or}"),
            Some(default) => {
                format!(
                    "its value is not known, and its default `{default}` needs it in turn{about}; give it{or}"
                )
            }
        }
    }
}

fn unmapped(text: Option<&str>) -> Result<Unmapped> {
    match text {
        None | Some("keep") => Ok(Unmapped::Keep),
        Some("drop") => Ok(Unmapped::Drop),
        Some("refuse") => Ok(Unmapped::Refuse),
        Some(other) => Err(MapError::Syntax(format!(
            "`unmapped` is \"keep\", \"drop\" or \"refuse\", not {other:?}"
        ))),
    }
}

/// A message that shows a line of the file, which may be as long as the file.
fn short_lines(message: &str) -> String {
    let lines: Vec<_> = message.lines().map(shortened).collect();
    lines.join("\n")
}

fn parameters_of(value: Option<toml::Value>) -> Result<BTreeMap<String, Parameter>> {
    let table = match value {
        None => return Ok(BTreeMap::new()),
        Some(toml::Value::Table(table)) => table,
        Some(_) => {
            return Err(MapError::Syntax(
                "`parameters` is no table; write `[parameters.NAME]`".into(),
            ));
        }
    };
    if table.len() > MAX_PARAMETERS {
        let what = format!("it has more than {MAX_PARAMETERS} parameters");
        return Err(MapError::Syntax(what));
    }
    let parameter = |(name, value): (String, toml::Value)| {
        let fault = |what: String| MapError::Parameter {
            name: name.clone(),
            what,
        };
        let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !is_name {
            return Err(fault("a name has letters, digits and `_`".into()));
        }
        let toml::Value::Table(table) = value else {
            return Err(fault(format!(
                "it is no table; write `[parameters.{name}]`"
            )));
        };
        let mut fields = Fields::new(table);
        let parameter = Parameter {
            about: fields.text("about").map_err(fault)?,
            args: fields.text("args").map_err(fault)?,
            config: fields.text("config").map_err(fault)?,
            default: fields.number("default").map_err(fault)?,
            forward_default: match fields.text("default_for").map_err(fault)?.as_deref() {
                None => false,
                Some("forward") => true,
                Some(other) => {
                    let what = format!("`default_for` is \"forward\", not {other:?}");
                    return Err(fault(what));
                }
            },
        };
        fields.done().map_err(fault)?;
        Ok((name, parameter))
    };
    table.into_iter().map(parameter).collect()
}
