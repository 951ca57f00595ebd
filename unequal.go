package pinboard

import (
	"errors"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/store"
)

// unequal says in the log why a node whose settings are not the fleet's serves nothing.
// Its callers learn no more than that the store is of no use.
type unequal struct{ said seldom }

// says reports whether an error is of that kind, and logs it now and then.
func (u *unequal) says(log *zap.Logger, err error) bool {
	why, ok := errors.AsType[*store.Unequal](err)
	if !ok {
		return false
	}
	if u.said.due() {
		log.Error("this node's settings are not the fleet's: it places, registers and renews nothing", zap.Error(why))
	}
	return true
}
