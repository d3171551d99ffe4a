// SPDX-License-Identifier: Apache-2.0

package workspace

import "golang.org/x/sys/unix"

// An exchange, renameat2(2), is two renames to the reader of events, of which the second takes the first one
// back: x leaves D for y in E, and y leaves E for x in D. There seems to be one name afterwards, and there are
// two. The kernel tells of both while it holds D and E (vfs_rename and fsnotify_move, Linux 6.18), so nothing
// about any name in either lies between the four events, however much of other directories does, and however
// long the caller was not scheduled in the middle. A rename that is taken back with nothing between looks the
// same, and is treated so; and so is a name that came and leaves where one of the two directories is not watched.

// takesBack reports whether a name leaves n that came by a rename, with nothing about n between.
func (n *node) takesBack(e event) bool {
	last := n.past[0]
	return last.mask&unix.IN_MOVED_TO != 0 && last.name == e.name
}

// beganWith reports whether the rename whose second half is e, out of from, ends where the one that it takes back
// began, as far as that is known.
//
// Preconditions: from remembers the first half, n does not remember e.
func (n *node) beganWith(e event, from *node) bool {
	began, taken := n.past[0], from.past[1]
	if n == from {
		began = n.past[2]
	}
	return began.mask == 0 || began.mask&unix.IN_MOVED_FROM != 0 && began.cookie == taken.cookie && began.name == e.name
}

// again forgets what is known there and looks anew. The Overflow comes behind the looks: who lists
// before a directory is watched may see a name there whose end nobody tells.
func (v *view) again(looks ...look) {
	v.owed = true
	for _, d := range looks {
		v.forget(d.n, d.name)
		v.todo = append(v.todo, d)
	}
}
