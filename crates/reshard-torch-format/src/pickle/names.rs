//! Names of Python 2, which pickles of protocols 0 to 2 use whoever writes them.

use std::borrow::Cow;

/// Modules that have another name in Python 2: (3, 2).
const MODULES: &[(&str, &str)] = &[
    ("_thread", "thread"),
    ("builtins", "__builtin__"),
    ("collections.abc", "_abcoll"),
    ("configparser", "ConfigParser"),
    ("copyreg", "copy_reg"),
    ("html.entities", "htmlentitydefs"),
    ("html.parser", "HTMLParser"),
    ("http.client", "httplib"),
    ("http.cookiejar", "cookielib"),
    ("http.cookies", "Cookie"),
    ("pickle", "cPickle"),
    ("queue", "Queue"),
    ("reprlib", "repr"),
    ("socketserver", "SocketServer"),
    ("subprocess", "commands"),
    ("urllib.parse", "urlparse"),
    ("urllib.request", "urllib2"),
    ("urllib.robotparser", "robotparser"),
    ("xmlrpc.client", "xmlrpclib"),
];

/// Modules that only one direction knows: Python 2's when reading, Python 3's when writing.
const READ_ONLY: &[(&str, &str)] = &[
    ("io", "StringIO"),
    ("io", "cStringIO"),
    ("collections", "UserDict"),
    ("collections", "UserList"),
];
const WRITE_ONLY: &[(&str, &str)] = &[("_functools", "functools"), ("_pickle", "pickle")];

type Place = (&'static str, &'static str);

/// Single names that moved between modules: (3, 2).
const NAMES: &[(Place, Place)] = &[
    (("builtins", "chr"), ("__builtin__", "unichr")),
    (("builtins", "filter"), ("itertools", "ifilter")),
    (("builtins", "int"), ("__builtin__", "long")),
    (("builtins", "map"), ("itertools", "imap")),
    (("builtins", "range"), ("__builtin__", "xrange")),
    (("builtins", "str"), ("__builtin__", "unicode")),
    (("builtins", "zip"), ("itertools", "izip")),
    (
        ("collections", "UserDict"),
        ("UserDict", "IterableUserDict"),
    ),
    (("collections", "UserList"), ("UserList", "UserList")),
    (("collections", "UserString"), ("UserString", "UserString")),
    (("functools", "reduce"), ("__builtin__", "reduce")),
    (("itertools", "filterfalse"), ("itertools", "ifilterfalse")),
    (("itertools", "zip_longest"), ("itertools", "izip_longest")),
    (
        ("multiprocessing.connection", "Connection"),
        ("_multiprocessing", "Connection"),
    ),
    (
        ("multiprocessing.context", "AuthenticationError"),
        ("multiprocessing", "AuthenticationError"),
    ),
    (
        ("multiprocessing.context", "BufferTooShort"),
        ("multiprocessing", "BufferTooShort"),
    ),
    (
        ("multiprocessing.context", "Process"),
        ("multiprocessing.process", "Process"),
    ),
    (
        ("multiprocessing.context", "ProcessError"),
        ("multiprocessing", "ProcessError"),
    ),
    (
        ("multiprocessing.context", "TimeoutError"),
        ("multiprocessing", "TimeoutError"),
    ),
    (
        ("multiprocessing.popen_fork", "Popen"),
        ("multiprocessing.forking", "Popen"),
    ),
    (("sys", "intern"), ("__builtin__", "intern")),
    (("urllib.error", "HTTPError"), ("urllib2", "HTTPError")),
    (("urllib.error", "URLError"), ("urllib2", "URLError")),
];

/// Exceptions, which Python 2 keeps in a module of their own.
const EXCEPTIONS: &[&str] = &[
    "ArithmeticError",
    "AssertionError",
    "AttributeError",
    "BaseException",
    "BufferError",
    "BytesWarning",
    "DeprecationWarning",
    "EOFError",
    "EnvironmentError",
    "Exception",
    "FloatingPointError",
    "FutureWarning",
    "GeneratorExit",
    "IOError",
    "ImportError",
    "ImportWarning",
    "IndentationError",
    "IndexError",
    "KeyError",
    "KeyboardInterrupt",
    "LookupError",
    "MemoryError",
    "NameError",
    "NotImplementedError",
    "OSError",
    "OverflowError",
    "PendingDeprecationWarning",
    "ReferenceError",
    "RuntimeError",
    "RuntimeWarning",
    "StopIteration",
    "SyntaxError",
    "SyntaxWarning",
    "SystemError",
    "SystemExit",
    "TabError",
    "TypeError",
    "UnboundLocalError",
    "UnicodeDecodeError",
    "UnicodeEncodeError",
    "UnicodeError",
    "UnicodeTranslateError",
    "UnicodeWarning",
    "UserWarning",
    "ValueError",
    "Warning",
    "ZeroDivisionError",
];

/// Newer exceptions are pickled as what Python 2 has for them.
const OS_ERRORS: &[&str] = &[
    "BrokenPipeError",
    "ChildProcessError",
    "ConnectionAbortedError",
    "ConnectionError",
    "ConnectionRefusedError",
    "ConnectionResetError",
    "FileExistsError",
    "FileNotFoundError",
    "InterruptedError",
    "IsADirectoryError",
    "NotADirectoryError",
    "PermissionError",
    "ProcessLookupError",
    "TimeoutError",
];

/// What Python 3 finds under a name in a pickle of protocol 2 or less.
pub(crate) fn modern<'a>(module: &'a str, name: &'a str) -> (Cow<'a, str>, Cow<'a, str>) {
    if module == "exceptions" && EXCEPTIONS.contains(&name) {
        return ("builtins".into(), name.into());
    }
    if let Some(((m, n), _)) = NAMES.iter().find(|(_, old)| *old == (module, name)) {
        return ((*m).into(), (*n).into());
    }
    let module = MODULES
        .iter()
        .chain(READ_ONLY)
        .find(|(_, old)| *old == module)
        .map_or(module, |(new, _)| new);
    (module.into(), name.into())
}

/// What Python 3 writes for a name in a pickle of protocol 2 or less.
pub(crate) fn ancient<'a>(module: &'a str, name: &'a str) -> (&'a str, &'a str) {
    if module == "builtins" {
        if EXCEPTIONS.contains(&name) {
            return ("exceptions", name);
        }
        if OS_ERRORS.contains(&name) {
            return ("exceptions", "OSError");
        }
        if name == "ModuleNotFoundError" {
            return ("exceptions", "ImportError");
        }
    }
    if let Some((_, old)) = NAMES.iter().find(|(new, _)| *new == (module, name)) {
        return *old;
    }
    let module = MODULES
        .iter()
        .chain(WRITE_ONLY)
        .find(|(new, _)| *new == module)
        .map_or(module, |(_, old)| old);
    (module, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_python_2_become_those_of_python_3_and_back() {
        for (new, old) in [
            (("builtins", "set"), ("__builtin__", "set")),
            (("builtins", "int"), ("__builtin__", "long")),
            (("builtins", "ValueError"), ("exceptions", "ValueError")),
            (
                ("collections", "OrderedDict"),
                ("collections", "OrderedDict"),
            ),
            (
                ("copyreg", "_reconstructor"),
                ("copy_reg", "_reconstructor"),
            ),
        ] {
            assert_eq!(ancient(new.0, new.1), old);
            let (m, n) = modern(old.0, old.1);
            assert_eq!((&*m, &*n), new);
        }
    }
}
