package redis

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/pinboard-go/pinboard/internal/store"
)

// layoutVersion stands for all that decides in which key a row lies and that is no
// setting: store.Shard, the leaves, how keys and bindings are written. It is another one
// whenever something of that changes.
const layoutVersion = 1

// layout is what the place of rows depends on, as scripts compare it: the version and
// the number of shards. See the package comment.
func layout(shards int) string {
	return strconv.Itoa(layoutVersion) + " " + strconv.Itoa(shards)
}

// readUnequal reads the error of a script that was called with another layout than the
// one that is kept; nil if it is any other error.
func readUnequal(text string) *store.Unequal {
	var version, shards, ownVersion, own int
	if _, err := fmt.Sscanf(text, "LAYOUT %d %d %d %d", &version, &shards, &ownVersion, &own); err != nil {
		return nil
	}
	if version != ownVersion {
		return &store.Unequal{Setting: "the layout of rows (a matter of pinboard's version)", Here: ownVersion, There: version}
	}
	return &store.Unequal{Setting: store.ShardsSetting, Here: own, There: shards}
}

// agreed is when this node was last told that its layout is the fleet's, nil for never.
type agreed struct{ at atomic.Pointer[time.Time] }

// agree is for what finds nothing, or not all, with another layout than the fleet's. What
// places, registers or renews does not go by it: the scripts themselves compare.
func (d *directory) agree(ctx context.Context) error {
	now := d.clocks.now()
	if at := d.agreed.at.Load(); at != nil && now.Sub(*at) < time.Duration(d.lease)*time.Millisecond/6 {
		return nil
	}
	if err := d.run(ctx, layoutScript.with([]string{d.keys.fleet().layout()}, d.layout)).err; err != nil {
		return err
	}
	d.agreed.at.Store(&now)
	return nil
}
