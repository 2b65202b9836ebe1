//! The examples of the front page and of the first steps, so that they compile and run as tests.

#[doc = include_str!("../../../README.md")]
struct FrontPage;

#[doc = include_str!("../../../docs/first-steps.md")]
struct FirstSteps;
