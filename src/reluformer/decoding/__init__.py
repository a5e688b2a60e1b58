"""From a model to translations.

reads, stepper        the decoder, one position at a time, for many beams of a source
candidates, outline   the best next tokens, and those that a target's outline forbids
search                beam search
forced                scores of translations that are given
documents             documents of any length
runs                  what makes a folder a run
translator            text in, text out
words                 the words of a window, and the tokens of each
inspection            which source words each output word read, and the slots that fired
"""
