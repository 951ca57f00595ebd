package main

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard"
)

// ofOthers are variables that workers and the commands of this program read.
var ofOthers = []string{"PINBOARD_URL", "PINBOARD_TOKEN", "PINBOARD_ALLOW_DEV_IN_PRODUCTION"}

// variables remembers which ones were asked for.
type variables struct {
	lookup func(string) (string, bool)
	asked  map[string]bool
}

// read reads the environment.
func (v *variables) read() (pinboard.Environment, error) {
	v.asked = map[string]bool{}
	return pinboard.ReadEnvironment(func(name string) (string, bool) {
		v.asked[name] = true
		return v.lookup(name)
	})
}

// linked is of the variables that Kubernetes sets for a Service, of any name that
// begins with "pinboard".
var linked = regexp.MustCompile(`_SERVICE_(HOST|PORT)(_[A-Z0-9_]+)?=|_PORT(_\d+_(TCP|UDP|SCTP))?=(tcp|udp|sctp)://|_PORT_\d+_(TCP|UDP|SCTP)_(PROTO|PORT|ADDR)=`)

// unknown returns the names of variables that seem to be meant for the server, and mean
// nothing to it.
func (v *variables) unknown(environ []string) (names []string) {
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, "PINBOARD_") && !v.asked[name] && !slices.Contains(ofOthers, name) && !linked.MatchString(entry) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// warn logs what may be a mistake. A server that has it serves all the same.
func (v *variables) warn(environ []string, log *zap.Logger) {
	for _, name := range v.unknown(environ) {
		log.Warn("a variable is not known", zap.String("name", name))
	}
	document, _ := v.lookup("PINBOARD_PASSPORT")
	var has struct{ Providers []json.RawMessage }
	if err := json.Unmarshal([]byte(document), &has); err == nil && len(has.Providers) == 0 {
		log.Warn("PINBOARD_PASSPORT has no providers: no worker can register, and no operator can ask")
	}
}
