//! The examples of the front page, of the first steps, of asynchronous saves, and of the guides to planners and stores, so that they compile and
//! run as tests.

#[doc = include_str!("../../../README.md")]
struct FrontPage;

#[doc = include_str!("../../../docs/first-steps.md")]
struct FirstSteps;

#[doc = include_str!("../../../docs/async-saves.md")]
struct AsyncSaves;

#[doc = include_str!("../../../docs/planners.md")]
struct Planners;

#[doc = include_str!("../../../docs/stores.md")]
struct Stores;
