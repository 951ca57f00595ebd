// Package leak finds out whether a secret is ever shown.
//
// In builds with the tag "leakcheck", the places where secrets come into this
// module tell them to Secret, and what this module says comes by Logger, Said
// and Tee. All of it is kept in files below the directory that the environment
// variable LEAKCHECK_DIR names, also by processes that tests start. Command
// leakcheck looks for the ones in the others: .ci/test runs the whole suite so.
// No test has to know of it: what it handles is what is looked for, and what is
// logged counts whatever its level, also where there is no logger.
//
// In all other builds the functions of this package do nothing.
package leak
