"""English words of five letters, written down for this project: no list was copied."""

from __future__ import annotations

_COMMON = """
about above after again alone apple beach begin black block blood board bread break bring brown
build carry catch chair cheap check child clean clear climb clock close cloud coast count cover
cream cross dance death drink drive early earth eight empty enemy enjoy enter every field fight
final first floor fresh front fruit glass grass great green group guess happy heart heavy horse
hotel house human judge knife large laugh learn leave light lunch metal money month mouth music
night noise north ocean offer paint paper party peace phone piece place plant plate point pound
power press price queen quick quiet radio reach ready right river round scale sense seven shape
share sharp sheep shirt short sleep small smile smoke snake solid sound south space speak speed
spoon sport staff stage stand start steel stone store storm story sugar sweet table taste teach
thank thing think three throw tiger tired title today touch tower train truck trust twice under
uncle until usual video visit voice waste watch water wheel where white whole woman world worry
write wrong young
"""

_OTHERS = """
abbey abide actor acute adapt admit adopt adult agent agile agree ahead alarm album alert alien
alike alive allow alloy aloud alpha alter amber amend ample amuse angel anger angle ankle annoy
apart apron arena argue arise armor aroma arrow aside asset atlas attic audio audit avoid await
awake award aware awful bacon badge badly baker basic basil basin batch beard beast bench berry
birth bison blade blame blank blast blaze bleak blend bless blind blink blunt blush boast bonus
booth brace brain brake brand brass brave brick bride brief brisk broad broom brush buddy bunch
burst cabin cable camel candy canoe cargo cause cease cedar chain chalk champ chaos charm chart
chase cheek cheer chess chest chief chill choir chord chose civic civil claim clash clasp class
clerk cliff cloak clone cloth clown coach cobra cocoa comet comic coral couch cough court
crack craft crane crash crawl crazy creek creep crime crisp crowd crown crude cruel crush crust
curve cycle daily dairy daisy debit debut decay delay delta dense depot depth derby devil diary
digit diner dirty ditch diver dizzy dodge donor doubt dough dozen draft drain drama drawn dream
dress drift drill drown eager eagle elbow elder elect elite error essay event exact exile exist
extra fable faint fairy faith false fancy fatal fault favor feast fence ferry fetch fever fiber
fifty flame flash fleet flesh flint float flock flood flora flour fluid flute focus force forge
forty found frame frost froze funny ghost giant glare gleam globe gloom glory glove grace grade
grain grand grant grape graph grasp grave gravy graze greed greet grief grill grind groan groom
guard guest guide guild habit harsh haste haunt hazel hedge hello hinge hobby honey honor humor
hurry ideal image imply index inner input irony issue ivory jeans jelly jewel joint joker jolly
juice juicy kayak knack kneel knock label labor laser later layer leash least lemon level lever
limit linen liver local lodge logic loose lorry lover lower loyal lucky lunar lyric magic major
maker manor maple march marsh mayor medal media melon mercy merge merit merry midst might minor
mixed model moist moral motor mount mouse movie muddy naive nerve never niche noble novel nurse
oasis olive onion opera orbit order organ other otter outer owner oxide panel panic patch pause
peach pearl pedal penny perch photo piano pilot pinch pitch pixel pizza plain plane plaza plead
pluck plumb porch poppy pride prime print prior prize probe proof proud prove pulse punch
pupil puppy purse quake quest queue quilt quote raise rally ranch range rapid ratio raven razor
realm rebel refer relax relay reply rider ridge rifle rigid rinse risky rival roast robin robot
rocky rough route royal rugby ruler rural salad salon sandy sauce scarf scene scent scold scoop
scope score scout scrap screw seize serve shade shaft shake shame shark sheet shelf shell shift
shine shock shore shout shown shrug siege sight silly since siren sixth sixty skate skill skirt
skull slate slice slide slope smart smell snack sneak solar solve sorry spare spark spear
spell spend spice spike spine split spoil spoke spray squad stack stain stair stake stale stamp
steak steam steep steer stern stick stiff still sting stock stool stove strap straw strip study
stuff style sunny super surge swamp swarm swear sweat sweep swift swing sword syrup teeth tempo
tenth thick thief thigh third thorn thumb tidal tight timer toast token tooth topic torch total
tough toxic trace track trade trail trait trash treat trend trial tribe trick trout tulip tutor
twist ultra union unite unity upper upset urban vague valid value valve vapor vault venue
verse vigor villa vinyl viola viral virus vital vivid vocal voter wagon waist weary weave weigh
weird whale wheat widow width windy witty wound wreck wrist yacht yeast yield youth zebra
"""

COMMON = tuple(_COMMON.split())
"""Words that a child knows."""

WORDS = COMMON + tuple(_OTHERS.split())
