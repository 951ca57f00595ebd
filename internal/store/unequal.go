package store

import "fmt"

// ShardsSetting is how an Unequal names Config.Shards to those who set it.
const ShardsSetting = "Shards (PINBOARD_SHARDS)"

// Unequal is the error of a node that looks for rows elsewhere than the nodes do with
// which the live sessions are registered. If it placed an id, the id could get a second
// owner; what it does not find may be there. So it places, registers, renews and frees
// nothing, as long as such sessions live.
type Unequal struct {
	// Setting is what differs, Here its value on this node and There on the others.
	Setting     string
	Here, There int
}

func (e *Unequal) Error() string {
	return fmt.Sprintf("%s is %d on this node and %d on the nodes that workers are registered with: "+
		"this node serves nothing until it is %d here, too; to change it, stop all nodes for one lease", e.Setting, e.Here, e.There, e.There)
}
