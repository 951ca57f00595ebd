// Package cli is the command line for people on call, and for programs: it asks a
// pinboard's registry (protocol §4) and shows what it says.
package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
)

// The exit statuses.
const (
	OK       = 0
	Failed   = 1 // the pinboard could not be asked, or could not do it
	Usage    = 2 // the command line or the environment is wrong; nothing was asked
	NotFound = 3 // there is no such worker, namespace or placement that the token may see
	Denied   = 4 // the token is not known, or may not do this
)

// command is one of the commands.
type command struct {
	name, args, about string
	// flags adds the command's own flags; run gets the arguments besides them, as
	// many as args names.
	flags func(c *call, f *flag.FlagSet)
	run   func(ctx context.Context, c *call) error
}

var commands = []command{
	{"overview", "", "counts: placements, workers and headroom by namespace and by worker", nil, overview},
	{"workers", "", "the live workers", nil, workers},
	{"placements", "", "which id is where", placementFlags, placements},
	{"where", "NAMESPACE ID", "where one id is, why, and how it moved", hostnameFlag, where},
	{"drain", "CLIENT", "no new ids for a worker, and have it wind down", deadlineFlag, drain},
	{"undrain", "CLIENT", "take that back", nil, undrain},
	{"wind-down", "NAMESPACE ID", "ask one instance to close", windDownFlags, windDown},
	{"events", "", "what happened, the newest last; -f goes on as it happens", eventFlags, events},
	{"stats", "[CLIENT]", "what workers say of themselves", nil, stats},
	{"health", "", "whether the node serves, its quarantine and its counters", nil, health},
}

// call is one run of a command.
type call struct {
	*client
	out, err io.Writer
	json     bool
	args     []string

	namespace, hostname, id, worker, prefix, kind string
	limit                                         int
	follow, revoke                                bool
	deadline                                      optionalDuration
}

// errUsage wraps what is wrong with the command line or the environment.
var errUsage = errors.New("usage")

// Run runs the command that args name, with PINBOARD_URL and PINBOARD_TOKEN looked
// up by lookup, and returns the exit status. Answers go to out, all else to errs.
// When ctx ends, so does the command: with OK if it was following events.
func Run(ctx context.Context, args []string, lookup func(string) (string, bool), out, errs io.Writer) (status int) {
	if len(args) == 0 || slices.Contains([]string{"help", "-h", "-help", "--help"}, args[0]) {
		help(out)
		return OK
	}
	at := slices.IndexFunc(commands, func(c command) bool { return c.name == args[0] })
	if at < 0 {
		_, _ = fmt.Fprintf(errs, "pinboard: unknown command %q\n\n", clean(args[0]))
		help(errs)
		return Usage
	}
	c := &call{out: out, err: errs}
	err := c.parse(commands[at], args[1:], lookup)
	if errors.Is(err, flag.ErrHelp) {
		return OK
	}
	if err == nil {
		err = commands[at].run(ctx, c)
	}
	if err == nil {
		return OK
	}
	_, _ = fmt.Fprintln(errs, "pinboard:", clean(err.Error()))
	if errors.Is(err, errUsage) {
		return Usage
	}
	if refused, ok := errors.AsType[*refusal](err); ok {
		return refused.exit()
	}
	return Failed
}

func help(w io.Writer) {
	_, _ = fmt.Fprint(w, `pinboard [serve]           runs the server, configured by its environment
pinboard COMMAND [flags]   asks the pinboard at PINBOARD_URL, with PINBOARD_TOKEN

`)
	for _, c := range commands {
		_, _ = fmt.Fprintf(w, "  %-28s %s\n", strings.TrimSpace(c.name+" "+c.args), c.about)
	}
	_, _ = fmt.Fprint(w, `
-o json writes JSON for programs. pinboard COMMAND -h tells a command's flags.
Exit status: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 not allowed.
`)
}

// parse takes the command line apart; flags may stand before and behind arguments.
func (c *call) parse(cmd command, args []string, lookup func(string) (string, bool)) error {
	f := flag.NewFlagSet(cmd.name, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	form := f.String("o", "table", "table or json")
	if cmd.flags != nil {
		cmd.flags(c, f)
	}
	for rest := args; ; {
		if err := f.Parse(rest); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				f.SetOutput(c.out)
				_, _ = fmt.Fprintf(c.out, "pinboard %s [flags]: %s\n", strings.TrimSpace(cmd.name+" "+cmd.args), cmd.about)
				f.PrintDefaults()
				return err
			}
			return fmt.Errorf("%s: %w (%w: see pinboard %s -h)", cmd.name, err, errUsage, cmd.name)
		}
		consumed := len(rest) - f.NArg()
		if f.NArg() == 0 {
			break
		}
		if consumed > 0 && rest[consumed-1] == "--" {
			c.args = append(c.args, f.Args()...)
			break
		}
		c.args, rest = append(c.args, f.Arg(0)), f.Args()[1:]
	}
	if *form != "table" && *form != "json" {
		return fmt.Errorf("%s: -o is table or json (%w)", cmd.name, errUsage)
	}
	c.json = *form == "json"
	most := strings.Fields(cmd.args)
	least := slices.DeleteFunc(slices.Clone(most), func(a string) bool { return strings.HasPrefix(a, "[") })
	if len(c.args) < len(least) || len(c.args) > len(most) || slices.Contains(c.args, "") {
		return fmt.Errorf("%w: pinboard %s [flags]", errUsage, strings.TrimSpace(cmd.name+" "+cmd.args))
	}
	var err error
	c.client, err = newClient(lookup)
	return err
}
